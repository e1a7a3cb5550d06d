"""Budget: the thinking ends after so many tokens, whatever it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attention.errors import check_int
from lil.detectors.base.base import Detector, Verdict, Watcher


@dataclass(frozen=True)
class Budget(Detector):
    """Stops after a fixed number of generated tokens: the control every other detector must beat.

    With `on_stop="answer"` it is budget forcing as in s1 (arXiv 2501.19393). Unlike
    `max_new_tokens` it may be followed by an action, and a sample it ended counts as stopped, not
    as cut off.

    Args:
        tokens: generated tokens that are kept.
        on_stop: what follows; not `regenerate`, for nothing says where to go back to.

    Raises:
        InvalidValue: `tokens` not an integer of at least 1, unknown action, or `regenerate`.
    """

    tokens: int = 2048

    name: ClassVar[str] = "budget"
    served: ClassVar[bool] = True
    ladder = (
        "tokens",
        (
            *(32000, 24000, 16000, 12000, 8000, 6000, 4000, 3000, 2500, 2000, 1750, 1500, 1250),
            *(1000, 850, 700, 600, 500, 400, 350, 300, 250, 200, 150, 100),
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("tokens", self.tokens, 1)

    def anew(self) -> None:
        """Nothing: the action limits the tokens that follow."""
        return

    def watch(self, prompt: bytes = b"") -> Spending:
        return Spending(self, prompt)


class Spending(Watcher[Budget]):
    """Counts."""

    @property
    def patience(self) -> int:
        return max(0, self.detector.tokens - self.tokens - 1)

    def push(self, piece: bytes) -> Verdict | None:  # noqa: ARG002
        if self.tokens < self.detector.tokens:
            return None
        return Verdict("budget", self.tokens, {"step": self.tokens, "budget": self.tokens})

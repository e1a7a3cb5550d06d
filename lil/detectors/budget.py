"""Budget: the thinking ends after so many tokens, whatever it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from attention.errors import InvalidValue
from lil.actions import OnStop, action
from lil.detectors._protocol import Verdict, as_pieces, onward


@dataclass(frozen=True)
class Budget:
    """Stops after a fixed number of generated tokens: the control every other detector must beat.

    Budget forcing as in s1 (arXiv 2501.19393), which appends the end of thinking so that the model
    answers: take `on_stop="answer"` for that. Unlike `max_new_tokens` it may be followed by an
    action, and a sample it ended counts as stopped, not as cut off.

    Args:
        tokens: generated tokens that are kept.
        on_stop: what follows, see `lil.actions`; not `regenerate`, for nothing says where to go
            back to.

    Raises:
        InvalidValue: `tokens` below 1, unknown action, or `regenerate`.
    """

    tokens: int = 2048
    on_stop: OnStop = "stop"
    _seen: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    name: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_stop", onward(self.name, self.on_stop))
        if self.tokens < 1:
            raise InvalidValue("tokens", self.tokens, "at least 1")

    def params(self) -> dict[str, object]:
        return {"tokens": self.tokens, "on_stop": action(self.on_stop).to_dict()}

    def clone(self) -> Budget:
        return replace(self)

    def start(self, prompt: bytes = b"") -> None:  # noqa: ARG002 - generated tokens alone count
        self._seen[:] = [0]

    def update(self, pieces: Sequence[bytes]) -> Verdict | None:
        """See generated tokens, one element each; the verdict once there are enough.

        Raises:
            InvalidValue: one bytes or str object instead of a sequence of tokens.
            RuntimeError: `start` was not called.
        """
        if not self._seen:
            raise RuntimeError("Budget.update before Budget.start(prompt)")
        self._seen[0] += len(as_pieces(pieces))
        if self._seen[0] < self.tokens:
            return None
        return Verdict(self.name, self.tokens, {"step": self.tokens, "budget": self.tokens})

    def returns(self) -> Sequence[int]:
        """None: what is kept is never left."""
        return ()

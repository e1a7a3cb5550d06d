"""Both: the last verdict of several detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lil.detectors.base.base import Verdict
from lil.detectors.combined._parts import Combination, PartWatchers


@dataclass(frozen=True)
class Both(Combination):
    """Stops when all of its parts have had a verdict: "a and b".

    Ours. Verdicts need not come at the same token: a part that errs early leaves the decision to
    the others.

    Args:
        parts: `guardian+recurrence`, or names, mappings of `name` and parameters, and detectors.
        on_stop: what follows, for all parts; not `regenerate`.

    Raises:
        InvalidValue: no part, an unknown or unbuildable one, unknown action, or `regenerate`.
    """

    name: ClassVar[str] = "both"

    def watch(self, prompt: bytes = b"") -> All:
        return All(self, prompt)


class All(PartWatchers):
    """The parts, until the last has a verdict."""

    def join(self, newest: Verdict) -> Verdict | None:
        verdicts = [watcher.verdict for watcher in self.watchers]
        if None in verdicts:
            return None
        parts = [
            {"part": verdict.detector, "token": verdict.token, **verdict.evidence}
            for verdict in verdicts
            if verdict
        ]
        return Verdict("both", newest.token, {"step": self.tokens, "parts": parts})

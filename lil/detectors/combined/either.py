"""Either: the first verdict of several detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lil.detectors.base.base import Verdict
from lil.detectors.combined._parts import Combination, PartWatchers


@dataclass(frozen=True)
class Either(Combination):
    """Stops as soon as one of its parts would: "a or b".

    Ours. It sees what any of them sees, and errs wherever one of them errs.

    Args:
        parts: `recurrence+margin`, or names, mappings of `name` and parameters, and detectors.
        on_stop: what follows, for all parts; not `regenerate`.

    Raises:
        InvalidValue: no part, an unknown or unbuildable one, unknown action, or `regenerate`.
    """

    name: ClassVar[str] = "either"

    def watch(self, prompt: bytes = b"") -> First:
        return First(self, prompt)


class First(PartWatchers):
    """The parts, until one has a verdict."""

    def join(self, newest: Verdict) -> Verdict:
        evidence = {"step": self.tokens, "part": newest.detector, **newest.evidence}
        return Verdict("either", newest.token, evidence)

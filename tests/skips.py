"""What was not tested: the skips of a run by their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def skips_by_reason(reasons: Iterable[str]) -> str:
    """One line: how many tests were skipped for each reason, the commonest first.

    Args:
        reasons: one of each skip, as pytest gives it.
    """
    counts = Counter(" ".join(reason.removeprefix("Skipped: ").split()) for reason in reasons)
    commonest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = "; ".join(f"{n} {reason}" for reason, n in commonest)
    return f"{counts.total()} skipped: {parts}" if parts else "0 skipped"

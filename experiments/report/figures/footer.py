"""What stands below every figure: under which conditions it was made, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.row import ReportRow, pairs, shown_detector


@dataclass(frozen=True)
class Conditions:
    """What a sweep's rows do not hold; None is not said.

    Attributes:
        seed: of decoding and of the bootstrap.
        dtype: of the weights.
        cap: of a sparse run, as it was given.
        max_new_tokens: cap of full attention.
    """

    seed: int | None = None
    dtype: str | None = None
    cap: str | None = None
    max_new_tokens: int | None = None

    def words(self) -> list[str]:
        """Each, as a reader sees it."""
        found = []
        if self.seed is not None:
            found.append(f"seed {self.seed}")
        if self.dtype is not None:
            found.append(self.dtype)
        caps = []
        if self.cap is not None:
            caps.append(f"of sparse attention {self.cap}")
        if self.max_new_tokens is not None:
            caps.append(f"of full attention {self.max_new_tokens:,} tokens")
        return [*found, "cap " + ", ".join(caps)] if caps else found


def footer(rows: Sequence[ReportRow], conditions: Conditions) -> list[str]:
    """Model, samples, seed, type, cap; configurations left out because they are not complete."""
    models = sorted({row.model for row in rows})
    samples = sorted({row.samples for row in rows})
    n = f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"
    notes = [f"model {', '.join(models)}", f"n = {n} samples a configuration", *conditions.words()]
    left_out = sum(not row.is_complete for row in rows if row.detector == "none")
    if left_out:
        several = "configurations that are" if left_out > 1 else "configuration that is"
        notes.append(f"without {left_out} {several} not complete")
    return notes


def other_detectors(rows: Sequence[ReportRow]) -> list[str]:
    """Which detectors of the store a figure that shows one leaves out."""
    shown = shown_detector(rows)
    others = [f"{name} ({action})" for name, action in pairs(rows) if (name, action) != shown]
    return [f"not shown here: {', '.join(others)} (Figure 5)"] if others else []


def cut(rows: Sequence[ReportRow], words: str = "their lengths are lower bounds") -> list[str]:
    """What it means that outputs were cut at the cap, where any was."""
    if not any(row.capped for row in rows if row.detector == "none"):
        return []
    return [f"some outputs were cut at the cap and would have gone on: {words}"]


def censored(rows: Sequence[ReportRow]) -> int:
    """The most pairs of a configuration that are in no ratio: full attention was cut itself."""
    return max((row.pairs_censored for row in rows if row.detector == "none"), default=0)

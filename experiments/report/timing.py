"""When seconds may be compared, and why not where they may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.store.samples.sample import Sample, setting

#: A row's measures that are seconds, or are made of them.
SECONDS = (
    *("prefill_sec", "decode_sec", "end_to_end_sec", "end_to_end_ratio", "cache_byte_sec"),
    *("cache_byte_sec_ratio", "sec_per_solved", "sec_per_solved_ratio"),
)


def comparable(measures: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """The measures with their seconds, or without them and with the reason.

    Args:
        measures: of one row.
        samples: the row's own and its partners under full attention.
    """
    why = _why_not(samples)
    withheld = {} if why is None else {name: None for name in SECONDS if name in measures}
    return {**measures, **withheld, "seconds_null_why": why}


def _why_not(samples: Sequence[Sample]) -> str | None:
    """Why the seconds of these samples have no common measure; None where they have."""
    if any(sample.workers > 1 for sample in samples):
        return "runs were decoded by several workers, which slow each other down"
    found = {setting(sample) for sample in samples}
    if len(found) <= 1 and None not in found:
        return None
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return "it is not known in which sweep and batches the runs were decoded"
    sweeps = {sweep for sweep, _ in known}
    if len(sweeps) > 1:
        return f"runs, or those of full attention, were decoded in {len(sweeps)} sweeps"
    sizes = sorted(size for _, size in known)
    return f"runs, or those of full attention, were decoded in batches of {_listed(sizes)} rows"


def _listed(sizes: Sequence[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}"

"""A store's traces as calibration sees them: by problem, with what each setting does to them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.stopping.promise import Clean, FalseStops, false_stops, halves
from experiments.store.samples.sample import Sample

#: Data set and item: a problem.
Key = tuple[str, str]
#: Of one problem: each trace as decoded, and under each setting.
Traces = Mapping[Key, Sequence[tuple[Sample, Sequence[Sample]]]]


def by_problem(samples: Sequence[Sample], names: Sequence[str]) -> Traces:
    """Every trace there is, by its problem.

    Those of nulls are left out: no detector watches them, see `Study.able`.

    Args:
        samples: of a study under all settings.
        names: what the settings are called.
    """
    plain: dict[tuple[object, ...], Sample] = {}
    under: dict[tuple[object, ...], dict[str, Sample]] = defaultdict(dict)
    for sample in samples:
        if sample.role == "null":
            continue
        if sample.detector == "none":
            plain[sample.run] = sample
        else:
            under[sample.run][sample.detector] = sample
    found: dict[Key, list[tuple[Sample, list[Sample]]]] = defaultdict(list)
    for run, sample in plain.items():
        if sample.tokens is not None:
            stopped = [under[run][name] for name in names]
            found[sample.dataset, sample.item_id].append((sample, stopped))
    return found


def in_halves(traces: Traces, seed: int) -> tuple[Traces, Traces]:
    """Problems to choose on and problems to report on, the same in every data set and kind.

    Those with a clean trace are halved by themselves: they alone say something of false stops.
    Which traces are clean does not depend on any detector.

    Args:
        traces: by problem.
        seed: another one gives other halves.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for (dataset, item), pairs in traces.items():
        clean = any(_is_clean(plain) for plain, _ in pairs)
        kinds[f"{dataset}/{clean}"].append(item)
    first, _ = halves(kinds, seed)
    chosen = {
        key for key in traces if any(f"{key[0]}/{c}/{key[1]}" in first for c in (True, False))
    }
    return (
        {key: pairs for key, pairs in traces.items() if key in chosen},
        {key: pairs for key, pairs in traces.items() if key not in chosen},
    )


class Half:
    """The traces of half of the problems.

    Args:
        traces: by problem.
        names: what the settings are called.
    """

    def __init__(self, traces: Traces, names: Sequence[str]) -> None:
        self.names = names
        self.all = [pair for pairs in traces.values() for pair in pairs]
        self.clean = [
            Clean(
                "/".join(key),
                len(clean),
                tuple(
                    sum(stopped[at].stopped_at is not None for _, stopped in clean)
                    for at in range(len(names))
                ),
            )
            for key, pairs in traces.items()
            if (clean := [pair for pair in pairs if _is_clean(pair[0])])
        ]

    def false_stops(self, at: int) -> FalseStops:
        """What a setting does to the traces that it should leave alone."""
        return false_stops(self.clean, at)

    def told(self, at: int) -> dict[str, Any]:
        """That, and what the setting saves of all traces: tokens, and of wasted ones."""
        before = [plain for plain, _ in self.all]
        after = [stopped[at] for _, stopped in self.all]
        saved = {
            name: _share(
                [getattr(one, name) for one in before], [getattr(one, name) for one in after]
            )
            for name in ("paid_tokens", "wasted_loop", "wasted_tail")
        }
        return dataclasses.asdict(self.false_stops(at)) | {"saved": saved}


def _is_clean(sample: Sample) -> bool:
    full = sample.backend == "full" and sample.penalty == "none"
    return sample.status == "ok" and (full or sample.correct is True)


def _share(before: Sequence[int | None], after: Sequence[int | None]) -> float | None:
    """The share of a total that is gone; None where nothing is known, or there was nothing."""
    known = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    total = sum(b for b, _ in known)
    return 1 - sum(a for _, a in known) / total if total else None

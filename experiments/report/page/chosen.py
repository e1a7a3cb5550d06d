"""Which runs a page shows where it cannot show all: some of every kind, then the first ones."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.grid.data.sets import labels
from experiments.grid.plan import Run
from experiments.store.labels import penalty_labels
from experiments.store.samples.replay import blank
from experiments.store.samples.sample import Key, Sample, is_usable
from experiments.store.study import Study

#: Said on the page beside how many there are.
RULE = (
    "of every configuration the longest run, the shortest, one wrong though full attention is "
    "right and one where each detector fired, then runs in the order of the problems; each with "
    "full attention's of the same problem"
)


@dataclass(frozen=True)
class PageRun:
    """A run of which there is a text: its sample as decoded, and under each detector."""

    run: Run
    plain: Sample
    watched: tuple[Sample, ...]

    @property
    def configuration(self) -> Key:
        """What the runs of one row share."""
        return self.plain.key


def page_runs(study: Study, samples: Sequence[Sample]) -> list[PageRun]:
    """Every run of the plan that has a text, in its order, beside its samples."""
    by_run: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_run[sample.run].append(sample)
    found = []
    called = labels([cell.dataset for cell in study.plan.configurations])
    for cell, penalty in zip(study.plan.configurations, penalty_labels(study.plan), strict=True):
        runs = study.plan.runs(cell)
        method = blank(runs[0], penalty).key[2:] if runs else ()
        for run in runs:
            key = cell.model, called[cell.dataset], *method
            mine = by_run.get((*key, run.item_id, run.sample_index), [])
            plain = [one for one in mine if one.detector == "none" and is_usable(one)]
            if plain:
                watched = tuple(one for one in mine if one.detector != "none" and is_usable(one))
                found.append(PageRun(run, plain[0], watched))
    return found


def by_worth(runs: Sequence[PageRun]) -> Iterator[PageRun]:
    """All of them, those a page should rather have first, full attention's before its partners.

    Configurations take turns, so that none is left without while another has two.
    """
    full = {one.plain.pair: one for one in runs if one.run.configuration.is_full}
    apart: dict[Key, list[PageRun]] = defaultdict(list)
    for one in runs:
        apart[one.configuration].append(one)
    given: set[int] = set()
    for turn in itertools.zip_longest(*(_picks(part, full) for part in apart.values())):
        for one in filter(None, turn):
            for each in filter(None, (full.get(one.plain.pair), one)):
                if id(each) not in given:
                    given.add(id(each))
                    yield each


def _picks(
    part: list[PageRun], full: dict[tuple[str, str, str, int], PageRun]
) -> list[PageRun | None]:
    """One configuration's runs: an example of every kind, in the same places for all, then all."""

    def lost(one: PageRun) -> bool:
        partner = full.get(one.plain.pair)
        return one.plain.correct is False and bool(partner and partner.plain.correct)

    def fired(name: str, action: str) -> Callable[[PageRun], bool]:
        return lambda one: any(
            (s.detector, s.action) == (name, action) and s.stopped_at is not None
            for s in one.watched
        )

    def first(is_one: Callable[[PageRun], bool]) -> PageRun | None:
        return next((one for one in part if is_one(one)), None)

    detectors = dict.fromkeys((s.detector, s.action) for one in part for s in one.watched)
    return [
        max(part, key=lambda one: one.plain.tokens or 0),
        min(part, key=lambda one: one.plain.tokens or 0),
        first(lost),
        *(first(fired(*detector)) for detector in detectors),
        *part,
    ]

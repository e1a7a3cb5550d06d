"""Which runs a page shows where it cannot show all: some of every kind, then the first ones."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.grid.data.sets import labels
from experiments.grid.plan import Run
from experiments.store.labels import penalty_labels
from experiments.store.samples.replay import blank
from experiments.store.samples.sample import Key, Sample, is_usable
from experiments.store.study import Study

#: Stands on the page where it cannot show all.
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


def page_runs(study: Study, samples: Sequence[Sample]) -> list[PageRun]:
    """Every run of the plan that has a text, in its order, with its samples."""
    by_run: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in filter(is_usable, samples):
        by_run[sample.run].append(sample)
    names = labels([configuration.dataset for configuration in study.plan.configurations])
    runs = []
    for configuration, penalty in zip(
        study.plan.configurations, penalty_labels(study.plan), strict=True
    ):
        for run in study.plan.runs(configuration):
            method = blank(run, penalty).key[2:]
            key = (
                configuration.model,
                names[configuration.dataset],
                *method,
                run.item_id,
                run.sample_index,
            )
            plain = [sample for sample in by_run[key] if sample.detector == "none"]
            watched = [sample for sample in by_run[key] if sample.detector != "none"]
            if plain:
                runs.append(PageRun(run, plain[0], tuple(watched)))
    return runs


def by_worth(runs: Sequence[PageRun]) -> Iterator[PageRun]:
    """All of them, those a page should rather have first, full attention's before its partners.

    Configurations take turns, so that none is left without while another has two.
    """
    full = {run.plain.pair: run for run in runs if run.run.configuration.is_full}
    parts: dict[Key, list[PageRun]] = defaultdict(list)
    for run in runs:
        parts[run.plain.key].append(run)
    picks = (_picks(part, full) for part in parts.values())
    turns = itertools.chain.from_iterable(itertools.zip_longest(*picks))
    seen: set[int] = set()
    for pick in filter(None, turns):
        for run in filter(None, (full.get(pick.plain.pair), pick)):
            if id(run) not in seen:
                seen.add(id(run))
                yield run


def _picks(
    part: list[PageRun], full: dict[tuple[str, str, str, int], PageRun]
) -> list[PageRun | None]:
    """One configuration's runs: an example of every kind, in the same places for all, then all."""
    by_length = sorted(part, key=lambda run: run.plain.tokens or 0)
    lost = (
        run
        for run in part
        if run.plain.correct is False
        and (partner := full.get(run.plain.pair)) is not None
        and partner.plain.correct
    )
    fired: dict[tuple[str, str], PageRun | None] = {}
    for run in part:
        for sample in run.watched:
            pair = sample.detector, sample.action
            if fired.get(pair) is None:
                fired[pair] = run if sample.stopped_at is not None else None
    return [by_length[-1], by_length[0], next(lost, None), *fired.values(), *part]

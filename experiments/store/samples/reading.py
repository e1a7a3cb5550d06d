"""Samples of a whole study: those kept from before, the others from their traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.identity import Cell
from experiments.store.labels import labels, penalty_labels
from experiments.store.samples.cached import Cache, Planned, key
from experiments.store.samples.of_trace import samples_of
from experiments.store.samples.sample import Sample
from experiments.store.workers import processes

if TYPE_CHECKING:
    from lil import Detector

#: Traces to read below which another process is not worth its start.
FEW = 1000


class Job(NamedTuple):
    """One configuration to read: what its data set and its penalty are called, and the detectors it
    is able to have, with what they are called.
    """

    cell: Cell
    dataset: str
    penalty: str
    able: tuple[tuple[str, Detector], ...]


def read(
    study: Planned,
    detectors: Sequence[Detector],
    on_run: Callable[[], None] | None = None,
    workers: int = 1,
    cells: Sequence[Cell] | None = None,
    named: Sequence[str] | None = None,
) -> list[Sample]:
    """Every run as decoded and as each detector would have left it, without texts.

    Args:
        study: whose runs.
        detectors: replayed over each trace.
        on_run: called for each run that is done, for a progress bar.
        workers: processes to read traces with. Above 1 they are started anew, so a program that
            asks for them has to be importable: its own work behind `if __name__ == "__main__"`.
        cells: those alone; None for all.
        named: what `names` gave of all cells, where that has been asked.
    """
    jobs = [job for job in _jobs(study, detectors) if cells is None or job.cell in cells]
    cache = Cache(study.store.path)
    keys = [key(study, *job) for job in jobs] if named is None else named
    found = {}
    for at, name in enumerate(keys):
        kept = cache.get(name)
        if kept is not None:
            found[at] = kept
            _tell(on_run, study, jobs[at])
    left = [at for at in range(len(jobs)) if at not in found]
    for at, made in _made(study, jobs, left, workers):
        found[at] = made
        cache.put(keys[at], made)
        _tell(on_run, study, jobs[at])
    if left:
        cache.tidy()
    return [sample for at in range(len(jobs)) for sample in found[at]]


def names(study: Planned, detectors: Sequence[Detector]) -> list[str]:
    """What the samples of each configuration are kept under: a digest of all they follow from."""
    return [key(study, *job) for job in _jobs(study, detectors)]


def _jobs(study: Planned, detectors: Sequence[Detector]) -> Iterator[Job]:
    named = list(zip(labels(detectors), detectors, strict=True))
    called = dataset_labels([cell.dataset for cell in study.plan.cells])
    for cell, penalty in zip(study.plan.cells, penalty_labels(study.plan), strict=True):
        yield Job(
            cell,
            called[cell.dataset],
            penalty,
            tuple(one for one in named if study.able(one[1], cell)),
        )


def _tell(on_run: Callable[[], None] | None, study: Planned, job: Job) -> None:
    for _ in study.plan.runs(job.cell) if on_run is not None else ():
        assert on_run is not None
        on_run()


def _made(
    study: Planned, jobs: Sequence[Job], left: Sequence[int], workers: int
) -> Iterator[tuple[int, list[Sample]]]:
    traces = sum(len(study.plan.runs(jobs[at].cell)) for at in left)
    if workers < 2 or traces < FEW:
        for at in left:
            yield at, _samples(study, jobs[at])
        return
    with processes(workers, _begin, (study,)) as pool:
        waiting = {pool.submit(_work, jobs[at]): at for at in left}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _samples(study: Planned, job: Job) -> list[Sample]:
    return [
        replace(sample, dataset=job.dataset)
        for run in study.plan.runs(job.cell)
        for sample in samples_of(
            run,
            study.store.get(run.id),
            study.caps(run),
            job.penalty,
            job.able,
            study.store,
            study.scorers,
        )
    ]


# What a worker reads, handed to it once as it begins.
_study: Planned | None = None


def _begin(study: Planned) -> None:
    global _study
    _study = study


def _work(job: Job) -> list[Sample]:
    assert _study is not None
    return _samples(_study, job)

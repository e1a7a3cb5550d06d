"""Samples of a whole study: those kept from before, the others from their traces.

What was read is kept beside the traces, so a report of the same runs reads none. A file holds the
samples of one configuration. Its name is a digest of all that they follow from: which records,
caps, gold answers and detectors, and the code that made them. So nothing in it can be out of date:
what changes is looked for under another name. Whoever deletes the folder loses nothing but time;
what cannot be written is not kept, and what is damaged is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import zstandard

from attention.identity import code as code_of
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.identity import Configuration, digest
from experiments.grid.scoring import Scorers
from experiments.store.files import cache as kept
from experiments.store.files.records import Record
from experiments.store.labels import labels, penalty_labels
from experiments.store.samples.replay import continues_after_verdict, samples_of
from experiments.store.samples.sample import Points, Sample
from experiments.store.workers import processes

if TYPE_CHECKING:
    from experiments.grid.plan import Plan, Run
    from experiments.store.store import Store
    from lil import Detector

#: Traces to read below which another process is not worth its start.
FEW = 1000


#: Bytes above which files that were not used for longest are deleted.
LARGEST = 512 << 20


class SampleSource(Protocol):
    """What of a `Study` its samples follow from."""

    @property
    def store(self) -> Store:
        """Where the traces are."""

    @property
    def plan(self) -> Plan:
        """Which of them count."""

    @property
    def scorers(self) -> Scorers:
        """Scorers of one's own that are here."""

    def caps(self, run: Run) -> Mapping[int | None, int]:
        """The most tokens a run may have, by times full attention's length."""

    def supports(self, detector: Detector, configuration: Configuration) -> bool:
        """Whether the cell's backend can do what follows the detector's verdict."""


class ReadingJob(NamedTuple):
    """One configuration to read: what its data set and its penalty are called, and the detectors it
    is able to have, with what they are called.
    """

    configuration: Configuration
    dataset: str
    penalty: str
    able: tuple[tuple[str, Detector], ...]


def read(
    study: SampleSource,
    detectors: Sequence[Detector],
    on_run: Callable[[], None] | None = None,
    workers: int = 1,
    configurations: Sequence[Configuration] | None = None,
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
    jobs = [
        job
        for job in _jobs(study, detectors)
        if configurations is None or job.configuration in configurations
    ]
    cache = Cache(study.store.path)
    keys = [key(study, *job) for job in jobs] if named is None else named
    found = {}
    for at, name in enumerate(keys):
        before = cache.get(name)
        if before is not None:
            found[at] = before
            _tell(on_run, study, jobs[at])
    left = [at for at in range(len(jobs)) if at not in found]
    for at, made in _made(study, jobs, left, workers):
        found[at] = made
        cache.put(keys[at], made)
        _tell(on_run, study, jobs[at])
    if left:
        cache.tidy()
    return [sample for at in range(len(jobs)) for sample in found[at]]


def names(study: SampleSource, detectors: Sequence[Detector]) -> list[str]:
    """What the samples of each configuration are kept under: a digest of all they follow from."""
    return [key(study, *job) for job in _jobs(study, detectors)]


def _jobs(study: SampleSource, detectors: Sequence[Detector]) -> Iterator[ReadingJob]:
    named = list(zip(labels(detectors), detectors, strict=True))
    called = dataset_labels([configuration.dataset for configuration in study.plan.configurations])
    for configuration, penalty in zip(
        study.plan.configurations, penalty_labels(study.plan), strict=True
    ):
        yield ReadingJob(
            configuration,
            called[configuration.dataset],
            penalty,
            tuple(one for one in named if study.supports(one[1], configuration)),
        )


def _tell(on_run: Callable[[], None] | None, study: SampleSource, job: ReadingJob) -> None:
    for _ in study.plan.runs(job.configuration) if on_run is not None else ():
        assert on_run is not None
        on_run()


def _made(
    study: SampleSource, jobs: Sequence[ReadingJob], left: Sequence[int], workers: int
) -> Iterator[tuple[int, list[Sample]]]:
    traces = sum(len(study.plan.runs(jobs[at].configuration)) for at in left)
    if workers < 2 or traces < FEW:
        for at in left:
            yield at, _samples(study, jobs[at])
        return
    with processes(workers, _begin, (study,)) as pool:
        waiting = {pool.submit(_work, jobs[at]): at for at in left}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _samples(study: SampleSource, job: ReadingJob) -> list[Sample]:
    return [
        replace(sample, dataset=job.dataset)
        for run in study.plan.runs(job.configuration)
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
_study: SampleSource | None = None


def _begin(study: SampleSource) -> None:
    global _study
    _study = study


def _work(job: ReadingJob) -> list[Sample]:
    assert _study is not None
    return _samples(_study, job)


# ---------------------------------------------------------------- kept from before


def key(
    study: SampleSource,
    configuration: Configuration,
    dataset: str,
    penalty: str,
    able: Sequence[tuple[str, Detector]],
) -> str:
    """The digest of everything that a cell's samples follow from; "" where none says it all.

    What a detector that does not ship says follows from code that anybody may edit: its samples are
    made each time.

    Args:
        study: whose runs.
        cell: whose samples.
        dataset, penalty: what the cell's are called.
        able: the detectors replayed, with what they are called.
    """
    if code_of(*(detector for _, detector in able)):
        return ""
    runs = []
    for run in study.plan.runs(configuration):
        record = study.store.get(run.id)
        judged = (run.problem.gold, run.problem.scorer)
        caps = list(study.caps(run).items())
        runs.append([run.item_id, run.sample_index, caps, judged, _place(record)])
    acted: list[str] = []
    if any(continues_after_verdict(detector) for _, detector in able):
        acted = sorted(str(_place(one)) for one in study.store if one.meta.get("detector"))
    return digest(
        {
            "code": kept.code(kept.READING),
            "cell": configuration.to_dict(),
            "called": [dataset, penalty],
            "detectors": [[label, one.identity()] for label, one in able],
            "runs": runs,
            "acted": acted,
            "scorers": {path: own.digest for path, own in study.scorers.items()},
        }
    )


def _place(record: Record | None) -> list[Any] | None:
    """Where a record lies; files only grow, so no other will ever lie there."""
    return None if record is None else [record.path.name, record.offset, record.length]


def folder(store: Path) -> Path:
    """Where a store has its cache."""
    return store / "cache"


class Cache:
    """Samples by the digest of what they follow from.

    Args:
        store: the folder of the store.
    """

    def __init__(self, store: Path) -> None:
        self.folder = kept.folder(store)

    def get(self, name: str) -> list[Sample] | None:
        """The samples kept under this digest; None where there are none, or damaged ones."""
        if not name:
            return None
        path = self._path(name)
        try:
            packed = kept.load(path)
            samples: list[Sample] = msgspec.msgpack.decode(
                packed, type=list[Sample], dec_hook=_decoded
            )
        except (OSError, zstandard.ZstdError, msgspec.DecodeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return samples

    def put(self, name: str, samples: Sequence[Sample]) -> None:
        """Keep samples under a digest, if there is one and the folder can be written."""
        if name:
            kept.save(self._path(name), samples, Points.__bytes__)

    def tidy(self) -> None:
        """Delete what was not used for longest, above `LARGEST` bytes."""
        with contextlib.suppress(OSError):
            found = [(path, path.stat()) for path in self.folder.glob("*.samples")]
            room = LARGEST
            for path, stat in sorted(found, key=lambda one: one[1].st_mtime, reverse=True):
                room -= stat.st_size
                if room < 0:
                    path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.samples"


def _decoded(kind: type[Any], value: Any) -> Any:
    """A curve of the bytes it was kept as; what may be anything stays as it is."""
    return Points.from_bytes(value) if kind is Points else value

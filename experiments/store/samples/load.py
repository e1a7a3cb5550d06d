"""Samples of a study, from its traces or from the cache beside them.

A file of the cache holds the samples of one configuration. Its name is a digest of all that they
follow from: records, caps, gold answers, detectors, scorers and `VERSION`. Whoever deletes the
folder loses nothing but time; a damaged file is made again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import zstandard

from attention.errors import InvalidValue
from attention.identity import code
from attention.local_modules import WithModules
from experiments.grid.identity import Configuration, digest
from experiments.grid.plan import Run
from experiments.grid.scoring import Scorers
from experiments.store.files.filesystem import write_atomically
from experiments.store.files.records import Record, decompressed
from experiments.store.samples.replay import continues_after_verdict, samples_of
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    from experiments.store.store import Store
    from lil import Detector

#: Raise it whenever the same traces would give other samples, as after a change to a detector.
VERSION = 1

#: Traces to read below which another process is not worth its start.
FEW = 1000

#: Bytes of the cache above which files that were not used for longest are deleted.
LARGEST = 512 << 20


class ReadingJob(NamedTuple):
    """One configuration to read."""

    configuration: Configuration
    runs: tuple[tuple[Run, Record | None, Mapping[int | None, int]], ...]
    dataset: str
    penalty: str
    detectors: tuple[tuple[str, Detector], ...]


def read(
    jobs: Sequence[ReadingJob],
    store: Store,
    scorers: Scorers,
    on_run: Callable[[], None] | None = None,
    workers: int = 1,
) -> list[Sample]:
    """Every run as decoded and as each detector would have left it, without texts."""
    keys = [key(job, store, scorers) for job in jobs]
    samples: dict[int, list[Sample]] = {}

    def done(at: int, of_job: list[Sample]) -> None:
        samples[at] = of_job
        for _ in jobs[at].runs if on_run is not None else ():
            assert on_run is not None
            on_run()

    for at, name in enumerate(keys):
        cached = _cached(store.path, name)
        if cached is not None:
            done(at, cached)
    missing = [at for at in range(len(jobs)) if at not in samples]
    for at, of_job in _read_traces(jobs, missing, store, scorers, workers):
        done(at, of_job)
        _save(store.path, keys[at], of_job)
    if missing:
        _tidy(store.path)
    return [sample for at in range(len(jobs)) for sample in samples[at]]


def _samples(job: ReadingJob, store: Store, scorers: Scorers) -> list[Sample]:
    return [
        replace(sample, dataset=job.dataset)
        for run, record, caps in job.runs
        for sample in samples_of(run, record, caps, job.penalty, job.detectors, store, scorers)
    ]


# ---------------------------------------------------------------- in several processes


def _read_traces(
    jobs: Sequence[ReadingJob], missing: Sequence[int], store: Store, scorers: Scorers, workers: int
) -> Iterator[tuple[int, list[Sample]]]:
    if workers < 2 or sum(len(jobs[at].runs) for at in missing) < FEW:
        for at in missing:
            yield at, _samples(jobs[at], store, scorers)
        return
    # Pickled here, so that a worker unpickles it only once it has set its threads.
    shared = pickle.dumps(WithModules((store, scorers)))
    context = multiprocessing.get_context("spawn")  # a fork would take torch's locks along
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(shared,))
    try:
        futures = {pool.submit(_work, pickle.dumps(jobs[at])): at for at in missing}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        allowed = "memory for all of them; samples that were read before are in the cache"
        raise InvalidValue("helper processes", f"one of {workers} was killed", allowed) from error
    finally:
        pool.shutdown(cancel_futures=True)


_shared: tuple[Store, Scorers] | None = None


def _begin(shared: bytes) -> None:
    """One thread each: libraries look at these variables when they are imported."""
    global _shared
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    _shared = pickle.loads(shared)


def _work(job: bytes) -> list[Sample]:
    assert _shared is not None
    return _samples(pickle.loads(job), *_shared)


# ---------------------------------------------------------------- the cache


def key(job: ReadingJob, store: Store, scorers: Scorers) -> str:
    """The digest of all that a job's samples follow from; "" where no digest holds it.

    A user's own detector may change between two calls: its samples are made each time.
    """
    if code(*(detector for _, detector in job.detectors)):
        return ""
    runs = [
        [
            *(run.item_id, run.sample_index, list(caps.items())),
            *(run.problem.gold, run.problem.scorer, run.problem.room, _place(record)),
        ]
        for run, record, caps in job.runs
    ]
    acted: list[str] = []
    if any(continues_after_verdict(detector) for _, detector in job.detectors):
        acted = sorted(str(_place(r)) for r in store if r.meta.get("detector"))
    return digest(
        {
            "version": VERSION,
            "configuration": job.configuration.to_dict(),
            "names": [job.dataset, job.penalty],
            "detectors": [[label, detector.identity()] for label, detector in job.detectors],
            "runs": runs,
            "acted": acted,
            "scorers": {path: scorer.digest for path, scorer in scorers.items()},
        }
    )


def _place(record: Record | None) -> list[str | int] | None:
    """Where a record lies: files only grow, so no other record will ever lie there."""
    return None if record is None else [record.path.name, record.offset, record.length]


def folder(store: Path) -> Path:
    """The folder of a store's cache."""
    return store / "cache"


def _cached(store: Path, name: str) -> list[Sample] | None:
    """The samples under this digest; None where there are none, or damaged ones."""
    path = folder(store) / f"{name}.samples"
    if not name:
        return None
    try:
        samples = msgspec.msgpack.decode(decompressed(path.read_bytes()), type=list[Sample])
    except (OSError, zstandard.ZstdError, msgspec.DecodeError, UnicodeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now
    return samples


def _save(store: Path, name: str, samples: Sequence[Sample]) -> None:
    """Save samples where that is possible: a store on a full disk is read all the same."""
    there = folder(store)
    if not name or there.is_symlink():  # in somebody else's store a link may lead anywhere
        return
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with contextlib.suppress(InvalidValue, OSError, UnicodeEncodeError, OverflowError):
        if not (there / ".gitignore").exists():
            write_atomically(there / ".gitignore", "*\n")
        packed = packer.compress(msgspec.msgpack.encode(samples))
        write_atomically(there / f"{name}.samples", packed)


def _tidy(store: Path) -> None:
    """Delete what was not used for longest, above `LARGEST` bytes."""
    if folder(store).is_symlink():
        return
    with contextlib.suppress(OSError):
        files = [(path.stat(), path) for path in folder(store).glob("*.samples")]
        left = LARGEST
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime, reverse=True):
            left -= stat.st_size
            if left < 0:
                path.unlink(missing_ok=True)

"""Samples of a study, from its traces or from their cache.

A file of the cache holds the samples of one configuration, under a digest of all that they follow
from and `VERSION`. Whoever deletes it loses nothing but time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import zstandard

from attention.errors import InvalidValue
from experiments.grid.identity import Configuration, digest
from experiments.grid.plan import Run
from experiments.grid.scoring import Scorers
from experiments.grid.sources import code
from experiments.store.files.filesystem import write_atomically
from experiments.store.files.records import Record, decompressed
from experiments.store.samples.replay import continues_after_verdict, samples_of
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    from experiments.store.store import Store
    from lil import Detector

#: Raise it whenever the same traces would give other samples, as after a change to a detector.
VERSION = 5


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
    on_run: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """Every run as decoded and as each detector would have left it, without texts."""
    samples: list[Sample] = []
    for job in jobs:
        name = key(job, store, scorers)
        of_job = _cached(store.path, name)
        if of_job is None:
            of_job = [
                replace(sample, dataset=job.dataset)
                for run, record, caps in job.runs
                for sample in samples_of(
                    run, record, caps, job.penalty, job.detectors, store, scorers
                )
            ]
            _save(store.path, name, of_job)
        samples += of_job
        for _ in job.runs:
            on_run()
    return samples


def key(job: ReadingJob, store: Store, scorers: Scorers) -> str:
    """The digest of all that a job's samples follow from; "" where no digest holds it."""
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
        return msgspec.msgpack.decode(decompressed(path.read_bytes()), type=list[Sample])
    except (OSError, zstandard.ZstdError, msgspec.DecodeError, UnicodeError):
        return None


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

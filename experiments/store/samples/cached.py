"""Samples that were read before, kept beside the traces: a report of the same runs reads no trace.

A file holds the samples of one configuration. Its name is a digest of all that they follow from:
which records, caps, gold answers and detectors, and the code that made them. So nothing in it can
be out of date: what changes is looked for under another name. Whoever deletes the folder loses
nothing but time; what cannot be written is not kept, and what is damaged is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import zstandard

from attention.identity import code as code_of
from experiments.grid.identity import Cell, digest
from experiments.grid.scoring import Scorers
from experiments.store.files import kept
from experiments.store.files.made_by import READING, code
from experiments.store.files.records import Record
from experiments.store.samples.acted_runs import acts
from experiments.store.samples.points import decoded, encoded
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    from experiments.grid.plan import Plan, Run
    from experiments.store.store import Store
    from lil import Detector

#: Bytes above which files that were not used for longest are deleted.
LARGEST = 512 << 20


class Planned(Protocol):
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

    def able(self, detector: Detector, cell: Cell) -> bool:
        """Whether the cell's backend can do what follows the detector's verdict."""


def key(
    study: Planned,
    cell: Cell,
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
    for run in study.plan.runs(cell):
        record = study.store.get(run.id)
        judged = (run.problem.gold, run.problem.scorer)
        caps = list(study.caps(run).items())
        runs.append([run.item_id, run.sample_index, caps, judged, _place(record)])
    acted: list[str] = []
    if any(acts(detector) for _, detector in able):
        acted = sorted(str(_place(one)) for one in study.store if one.meta.get("detector"))
    return digest(
        {
            "code": code(READING),
            "cell": cell.to_dict(),
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
                packed, type=list[Sample], dec_hook=decoded
            )
        except (OSError, zstandard.ZstdError, msgspec.DecodeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        return samples

    def put(self, name: str, samples: Sequence[Sample]) -> None:
        """Keep samples under a digest, if there is one and the folder can be written."""
        if name:
            kept.save(self._path(name), samples, encoded)

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

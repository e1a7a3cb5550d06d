"""Detectors that act: what their runs are called, and which of them have to be decoded.

A verdict changes no token before it falls, so a run differs from the plain one only where the
detector fires. Those runs alone are decoded again, with the detector at work; of the others the
plain trace is the run.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import lil
from attention.identity import code
from experiments.grid.identity import Cell, digest, run_id
from experiments.grid.plan import Run
from experiments.store.files.records import Record
from experiments.store.store import Store
from lil import Detector, Trace, Verdict


def acts(detector: Detector) -> bool:
    """Whether something is generated after its verdict."""
    return not detector.action.ends


def verdict_on(trace: Trace, detector: Detector, cap: int) -> Verdict | None:
    """The verdict on a plain trace, whatever follows it."""
    if acts(detector):
        detector = dataclasses.replace(detector, on_stop="stop")
    return lil.replay(trace, detector, max_tokens=cap)


class Fired(NamedTuple):
    """A plain run, and what a detector that acts says of it now.

    Attributes:
        run, record: of the plain run.
        cap: the most tokens it may have.
        detector, verdict: who fired, and how.
    """

    run: Run
    record: Record
    cap: int
    detector: Detector
    verdict: Verdict

    @property
    def id(self) -> str:
        """What the run in which it acts is called."""
        return acted_id(self.run, self.detector, self.cap)


def decoded(store: Store, fired: Fired) -> Record | None:
    """The run with this detector at work, if it was decoded: for this cap, or for another that it
    did not come up to, and neither to this one. What acted upon another verdict is no such run.
    """
    found = store.get(fired.id)
    if found is not None and _follows(found, fired):
        return found
    key = (fired.run.id, digest(fired.detector.identity()))
    others = _by_run(store, store.changes).get(key, ())
    fit = (one for one in others if _ended_below(one, fired.cap))
    return next((one for one in fit if _follows(one, fired)), None)


def _follows(record: Record, fired: Fired) -> bool:
    """Whether a stored run is what the detector makes of this verdict, by the same methods.

    The same first verdict by other code is enough only where no second one could end the row.
    """
    _, plain, _, detector, verdict = fired
    if not record.made_by(plain.code):
        return False
    if not record.made_by(code(detector)) and (record.failed or detector.action.watched):
        return False
    return record.meta.get("verdict") == told(verdict)


def told(verdict: Verdict) -> list[int | None]:
    """What a run that acts upon a verdict follows from: tokens kept, step and anchor."""
    return [verdict.token, verdict.step, verdict.anchor]


@functools.lru_cache(maxsize=4)
def _by_run(
    store: Store,
    changes: int,  # noqa: ARG001 - after another, look again
) -> dict[tuple[str, str], list[Record]]:
    """All runs with detectors that act, whatever their caps, by run and detector."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in store:
        meta = record.meta
        if meta.get("detector") is not None and not record.failed:
            cell = Cell(**meta["cell"])
            run = run_id(cell, meta["item_id"], meta["prompt"], meta["sample_index"])
            found.setdefault((run, digest(meta["detector"])), []).append(record)
    return found


def _ended_below(record: Record, cap: int) -> bool:
    """Whether no cap ended this run, nor would this one have."""
    if record.meta["tokens"] >= cap:
        return False
    trace = record.trace()
    done = trace.action or {}
    given = done.get("kept", 0) + done.get("cue_tokens", 0)
    by_itself = trace.finish != "length" or trace.tokens == given + (done.get("tokens") or 0)
    return by_itself and trace.decoded_tokens < cap


def acted_id(run: Run, detector: Detector, cap: int) -> str:
    """The identity of a run with a detector that acts.

    The cap is part of it: tokens that were dropped count towards it, so a longer run does not hold
    the shorter one, unless it ended before (`decoded`).
    """
    return digest({"run": run.id, "detector": detector.identity(), "cap": cap})

"""Detectors that act: what their runs are called, and which of them have to be decoded.

A verdict changes no token before it falls, so a run differs from the plain one only where the
detector fires. Those runs alone are decoded again, with the detector at work; of the others the
plain trace is the run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import lil
from experiments.grid.identity import Cell, digest, run_id
from experiments.grid.plan import Run
from experiments.store.files.records import Record
from experiments.store.store import Store
from lil import Detector, Trace, Verdict
from lil.detectors import OUTSIDE, Place

#: Parameters that detectors did not have once, and the values that are no part of an identity.
LATER: Mapping[str, Any] = {"within": None, "outside": OUTSIDE}


def acts(detector: Detector) -> bool:
    """Whether something is generated after its verdict."""
    return not detector.action.ends


def verdict_on(trace: Trace, detector: Detector, cap: int) -> Verdict | None:
    """The verdict on a plain trace, whatever follows it."""
    if acts(detector):
        detector = dataclasses.replace(detector, on_stop="stop")
    return lil.replay(trace, detector, max_tokens=cap)


def described(detector: Detector) -> dict[str, Any]:
    """A detector's name and all its resolved parameters; of a classifier its digest alone."""
    params = _without_weights(detector.params())
    if params["on_stop"].get("second") == "nothing":  # as were all actions once
        params["on_stop"] = {k: v for k, v in params["on_stop"].items() if k != "second"}
    return {"name": detector.name, **params}


def _as_once(told: dict[str, Any]) -> dict[str, Any]:
    """What a detector is known by: without parameters that came later and are as they come.

    They change no verdict while a model thinks, and behind it that of an earlier run is not looked
    for; `_is_of` says where they do.
    """
    kept = {name: value for name, value in told.items() if LATER.get(name, ...) != value}
    if "parts" in kept:
        kept["parts"] = [_as_once(part) for part in kept["parts"]]
    return kept


def _without_weights(params: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in params.items() if name != "weights"}
    if "parts" in kept:
        kept["parts"] = [_without_weights(part) for part in kept["parts"]]
    return kept


def decoded(store: Store, run: Run, detector: Detector, cap: int) -> Record | None:
    """The run with this detector at work, if it was decoded: for this cap, or for another that it
    did not come up to, and neither to this one.
    """
    found = store.get(acted_id(run, detector, cap))
    if found is not None and _is_of(found, detector):
        return found
    known = digest(_as_once(described(detector)))
    others = _by_run(store, len(store)).get((run.id, known), ())
    return next((one for one in others if _ended_below(one, cap) and _is_of(one, detector)), None)


def _is_of(record: Record, detector: Detector) -> bool:
    """Whether a run of before is one with this detector, and not with what it was then.

    Then, as much repetition was enough where no thinking goes on as where it does.
    """
    if "within" in record.meta["detector"] or record.failed or not _waits(detector.params()):
        return True
    trace = record.trace()
    place = Place("thinking", trace.prompt_bytes)
    for piece in trace.pieces:
        place.step(piece)
        if place.thinking:
            return True
    return place.thinking


def _waits(params: Mapping[str, Any]) -> bool:
    """Whether a detector, or a part of it, asks for more where no thinking goes on."""
    return "outside" in params or any(map(_waits, params.get("parts", ())))


@functools.lru_cache(maxsize=4)
def _by_run(
    store: Store,
    records: int,  # noqa: ARG001 - so many, then look again
) -> dict[tuple[str, str], list[Record]]:
    """All runs with detectors that act, whatever their caps, by run and detector."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in store:
        meta = record.meta
        if meta.get("detector") is not None and not record.failed:
            cell = Cell(**meta["cell"])
            run = run_id(cell, meta["item_id"], meta["prompt"], meta["sample_index"])
            found.setdefault((run, digest(_as_once(meta["detector"]))), []).append(record)
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


def acted(store: Store, run: Run, detector: Detector, cap: int) -> Record | None:
    """The run with this detector at work, if the store has it.

    Stores of before have runs in which a second verdict changed nothing. They count where the
    store has no others: rows of both kinds would be rows of neither.
    """
    found = decoded(store, run, detector, cap)
    if found is None and detector.action.watched and not _knows_second(store, len(store)):
        once = dataclasses.replace(detector.action, second="nothing")  # type: ignore[call-arg]
        found = store.get(acted_id(run, dataclasses.replace(detector, on_stop=once), cap))
        found = found if found is None or _is_of(found, detector) else None
    return found


@functools.lru_cache(maxsize=4)
def _knows_second(store: Store, records: int) -> bool:  # noqa: ARG001 - so many, then look again
    """Whether some run of the store was decoded so that a second verdict counted."""
    told = (record.meta.get("detector") for record in store)
    return any(one and "second" in one["on_stop"] for one in told)


def acted_id(run: Run, detector: Detector, cap: int) -> str:
    """The identity of a run with a detector that acts.

    The cap is part of it: tokens that were dropped count towards it, so a longer run does not hold
    the shorter one, unless it ended before (`decoded`).
    """
    return digest({"run": run.id, "detector": _as_once(described(detector)), "cap": cap})

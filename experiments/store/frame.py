"""A store as a pandas DataFrame: one row a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.scoring import Gold, correct, judged, shown
from experiments.store.files.records import Record
from experiments.store.manifest import paths
from experiments.store.sweeps import read_all
from lil.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

#: By data set and item id, the gold answer and its scorer.
Answers = Mapping[tuple[str, str], tuple[Gold, str]]

#: Fields of a trace that are no columns: lists as long as the output.
_LONG = ("prompt_ids", "new_ids", "pieces", "prompt_bytes", "curve", "checks", "signals", "dropped")

_WHOLE = ("sample_index", "budget", "tokens", "batch_size", "keys_kept_max", "keys_read_max")


def frame_of(records: Iterable[Record], folder: Path, answers: Answers | None) -> pd.DataFrame:
    """One row a run: identity, status, text, tokens, correct and costs; missing is null.

    Args:
        records: the runs.
        folder: of their store.
        answers: by default those of the store's newest sweep that has the problem.
    """
    import pandas as pd

    known = _answers(folder) if answers is None else answers
    frame = pd.DataFrame([_row(record, known) for record in records])
    # With a missing value among them pandas would make them floats.
    whole = [name for name in _WHOLE if name in frame]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def _row(record: Record, known: Answers) -> dict[str, Any]:
    meta = dict(record.meta)
    cell = meta.pop("cell")
    for key in ("code", "notes_code", "verdict"):
        meta.pop(key, None)
    backend = dict(cell["backend"])
    values = {} if record.failed else record.values()
    trace = None if record.failed else Trace.from_dict(values)
    text = None if trace is None else trace.text
    gold, scorer = known.get((cell["dataset"], meta["item_id"]), (None, "none"))
    return {
        "id": record.id,
        **{key: cell[key] for key in ("model", "dataset", "dtype")},
        "backend": backend.pop("name"),
        "budget": backend.pop("budget", None),
        "backend_params": ", ".join(f"{key}={backend[key]}" for key in sorted(backend)),
        "penalty": "+".join(p["name"] for p in cell["penalties"]) or "none",
        **meta,
        "acted": meta.get("detector") is not None,
        "correct": None if text is None else correct(text, gold, scorer),
        "gold": shown(gold),
        "answer": None if text is None else judged(text, None, scorer).answer,
        "text": text,
        "keys_read": None if trace is None else trace.checks[-1].keys_read,
        **{key: value for key, value in values.items() if key not in _LONG},
    }


def _answers(folder: Path) -> Answers:
    try:
        paths(folder)
    except InvalidValue:
        return {}  # there are traces without a manifest, and then no answers
    return {
        (dataset, problem.item_id): (problem.gold, problem.scorer)
        for sweep in reversed(read_all(folder, []))  # the newest last: its answers stand
        for (_, dataset), problems in sweep.plan.items.items()
        for problem in problems
    }

"""The store of decoded traces: append-only, one compressed record a trace, one file per writer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.scoring import Gold, Judgement, judged, shown
from experiments.store.files.filesystem import is_locked
from experiments.store.files.records import HEAD, Record, Writer, pack, read
from experiments.store.manifest import paths
from experiments.store.sweeps import read_all
from lil.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

#: By data set and item id, the gold answer and its scorer.
Answers = Mapping[tuple[str, str], tuple[Gold, str]]

#: Fields of a trace that are no columns: lists as long as the output.
_LONG = ("prompt_ids", "new_ids", "pieces", "prompt_bytes", "curve", "checks", "signals", "dropped")

#: Traces that are read to know how fast a backend decodes.
_TIMED = 64

_WHOLE = ("sample_index", "budget", "tokens", "batch_size", "keys_kept_max", "keys_read_max")


class Store:
    """All traces of a folder; readable while others write to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._writer: Writer | None = None
        if self.path.exists() and not self.path.is_dir():
            raise InvalidValue("out", str(self.path), "a folder")
        self.notices: list[str] = []
        self._records: dict[str, Record] = {}
        try:
            files = sorted((self.path / "traces").glob("*.zst"))
            live = is_locked(self.path)  # before reading: a sweep that ends leaves whole records
            records = [record for file in files for record in read(file, self.notices, live)]
            # Names of sweeps sort by time, those of files do not.
            for record in sorted(records, key=lambda record: str(record.meta["sweep"])):
                self._add(record)
        except OSError as error:
            raise InvalidValue("out", str(self.path), f"a readable folder ({error})") from error

    def _add(self, record: Record) -> None:
        """Add a record, in the order of sweeps."""
        old = self._records.get(record.id)
        if old is None or _incompatible(old, record) or old.failed or _beats(record, old):
            self._records[record.id] = record

    def get(self, id_: str) -> Record | None:
        """The best record of a run, or None."""
        return self._records.get(id_)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def frame(self) -> pd.DataFrame:
        """One row a run: identity, status, text, tokens, correct and costs; missing is null.

        A run that went on after a verdict is another row than the plain run: `acted` is True there.
        """
        if not (self.path / "traces").is_dir():
            raise InvalidValue("store", str(self.path), "the folder of a store, with traces/ in it")
        import pandas as pd

        answers = _answers(self.path)
        frame = pd.DataFrame([_row(record, answers) for record in self])
        # With a missing value among them pandas would make them floats.
        whole = [name for name in _WHOLE if name in frame]
        return frame.astype(dict.fromkeys(whole, "Int64"))

    def seconds_per_token(self) -> dict[tuple[str, str], float]:
        """What a token took, by model and backend: a row's share of its batch, prompts included."""
        records: dict[tuple[str, str], list[Record]] = {}
        for record in self:
            if not record.failed and record.meta.get("detector") is None:
                cell = record.meta["cell"]
                key = cell["model"], cell["backend"]["name"]
                records.setdefault(key, []).append(record)
        speeds = {}
        for key, of_backend in records.items():
            step = max(1, len(of_backend) // _TIMED)  # spread evenly: later runs are longer
            traces = [record.trace() for record in of_backend[::step]]
            timed = [trace for trace in traces if trace.decode_sec is not None and trace.tokens]
            tokens = sum(trace.tokens for trace in timed)
            seconds = sum((t.decode_sec or 0.0) + (t.prefill_sec or 0.0) for t in timed)
            if seconds:
                speeds[key] = seconds / tokens
        return speeds

    def append(self, id_: str, meta: Mapping[str, Any], trace: Mapping[str, Any] | None) -> Record:
        """Write one run behind this writer's own; on disk after at most `SYNC_EVERY` more."""
        if self._writer is None:
            self._writer = Writer(self.path)
        blob = pack(id_, meta, trace)
        offset = self._writer.write(blob)
        length = len(blob) - HEAD.size
        record = Record(id_, dict(meta), self._writer.path, offset + HEAD.size, length)
        self._add(record)
        return record

    def sync(self) -> None:
        """Wait until everything appended is on disk."""
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Sync and close this writer's file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _incompatible(left: Record, right: Record) -> bool:
    """Whether two records of a run were made by other code, or upon other verdicts."""
    shared = left.notes_code.keys() & right.notes_code.keys()
    return (
        left.code != right.code
        or left.meta.get("verdict") != right.meta.get("verdict")
        or any(left.notes_code[key] != right.notes_code[key] for key in shared)
    )


def _beats(record: Record, old: Record) -> bool:
    return not record.failed and _worth(record) > _worth(old)


def _worth(record: Record) -> tuple[int, int]:
    return int(record.meta["tokens"]), len(record.meta.get("signals", ()))


def _row(record: Record, answers: Answers) -> dict[str, Any]:
    meta = dict(record.meta)
    configuration = meta.pop("cell")
    for key in ("code", "notes_code", "verdict"):
        meta.pop(key, None)
    backend = dict(configuration["backend"])
    values = {} if record.failed else record.values()
    trace = None if record.failed else Trace.from_dict(values)
    gold, scorer = answers.get((configuration["dataset"], meta["item_id"]), (None, "none"))
    judgement = Judgement(None)
    if trace is not None:
        ended = trace.finish == "eos"
        judgement = judged(trace.text, gold, scorer, item=meta["item_id"], ended=ended)
    return {
        "id": record.id,
        **{key: configuration[key] for key in ("model", "dataset", "dtype")},
        "backend": backend.pop("name"),
        "budget": backend.pop("budget", None),
        "backend_params": ", ".join(f"{key}={backend[key]}" for key in sorted(backend)),
        "penalty": "+".join(p["name"] for p in configuration["penalties"]) or "none",
        **meta,
        "acted": meta.get("detector") is not None,
        "correct": judgement.correct,
        "gold": shown(gold),
        "answer": judgement.answer,
        "rule": judgement.rule,
        "text": None if trace is None else trace.text,
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

"""Traces as the page holds them: one compressed block a problem, and an index of their runs."""

from __future__ import annotations

import base64
import codecs
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile, zip_longest

from experiments.grid.answers import last_boxed
from experiments.report.names import detector_name, series
from experiments.report.row import ReportRow
from experiments.report.tables.backends import parts
from experiments.store.files.records import Record
from experiments.store.samples.replay import with_text
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.store import Store
from lil import Trace

#: What the page has of a run before its block is read, in this order.
COLUMNS = (
    "block", "at", "model", "dataset", "item", "sample", "backend", "budget", "penalty", "full",
    "tokens", "correct", "status", "fired",
)  # fmt: skip

#: Characters of the page around a block, at most, and of the index about a run, in most cases.
_AROUND, _LINE = 80, 100


@dataclass(frozen=True)
class TraceBlocks:
    """Traces as base64 over deflate over JSON.

    Attributes:
        index: `COLUMNS` of every run.
        blocks: one a problem: its prompt, its gold answer and its runs.
        packed, of: runs in the blocks, and runs that have a text.
    """

    index: str
    blocks: list[str]
    packed: int
    of: int

    @property
    def size(self) -> int:
        """Characters of all of it, with what is around each block on the page."""
        return sum(len(block) + _AROUND for block in [self.index, *self.blocks])


def pack(
    store: Store, samples: Sequence[Sample], rows: Sequence[ReportRow], limit: int
) -> TraceBlocks:
    """As many problems as fit in `limit` characters, each with all runs; data sets take turns."""
    packer = _Packer(store, samples, rows)
    problems: dict[tuple[str, str, str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.detector == "none" and is_usable(sample):
            problems[sample.pair].append(sample)
    turns: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, (model, dataset, *_) in enumerate(problems):
        turns[model, dataset].append(at)
    runs, blocks, size = list(problems.values()), dict[int, str](), _AROUND
    for at in chain.from_iterable(zip_longest(*turns.values())):
        if at is None:
            continue
        block = packer.block(runs[at])
        size += len(block) + _AROUND + _LINE * len(runs[at])
        if size > limit:
            break
        blocks[at] = block
    lines = [
        [number, place, *packer.line(sample)]
        for number, at in enumerate(sorted(blocks))
        for place, sample in enumerate(runs[at])
    ]
    index = _deflated(_json({"columns": COLUMNS, "runs": lines}))
    ordered = [blocks[at] for at in sorted(blocks)]
    return TraceBlocks(index, ordered, len(lines), sum(map(len, runs)))


class _Packer:
    """Makes a block of a problem's runs, and index lines of them."""

    def __init__(self, store: Store, samples: Sequence[Sample], rows: Sequence[ReportRow]) -> None:
        self.store = store
        self.watched: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
        for sample in samples:
            if sample.detector != "none" and is_usable(sample):
                self.watched[sample.run].append(sample)
        pairs = {(s.detector, s.action): None for part in self.watched.values() for s in part}
        self.detectors = {pair: detector_name(*pair, list(pairs)) for pair in pairs}
        self.labels = {
            row.key: label
            for part in parts(rows)
            for label, line in series(part).items()
            for row in line
        }

    def block(self, runs: Sequence[Sample]) -> str:
        """Prompt, gold answer and runs of a problem."""
        traces = [record.trace() for record in map(self._record, runs)]
        both = list(zip(runs, traces, strict=True))
        full = next((t.new_ids[: s.tokens] for s, t in both if _is_full(s)), None)
        values = {
            "prompt": traces[0].prompt_bytes.decode(errors="replace"),
            "gold": runs[0].gold,
            "runs": [self._run(sample, trace, full) for sample, trace in both],
        }
        return _deflated(_json(values))

    def _record(self, sample: Sample) -> Record:
        record = self.store.get(sample.record or "")
        assert record is not None, "a run with a sample is in the store"
        return record

    def _run(self, plain: Sample, trace: Trace, full: tuple[int, ...] | None) -> dict[str, object]:
        tokens = plain.tokens or 0
        pieces = trace.pieces[:tokens] if tokens < trace.tokens else trace.text_pieces
        text, lengths = spelled(pieces)
        watched = [
            {
                "name": self.detectors[sample.detector, sample.action],
                "action": sample.action,
                "at": sample.stopped_at,
                "tokens": sample.tokens,
                "paid": sample.paid_tokens,
                "correct": sample.correct,
                "text": self._continued(sample, plain, text),
            }
            for sample in self.watched[plain.run]
        ]
        return {
            "id": plain.record,
            "text": text,
            "lengths": lengths,
            "answer": plain.answer if plain.answer is not None else last_boxed(text),
            "finish": plain.finish,
            "parts": None if full is None else _parting(trace.new_ids[:tokens], full),
            "curve": [point for point in plain.curve if point[0] is not None],
            "keys": _keys(trace, tokens),
            "watched": watched,
        }

    def line(self, plain: Sample) -> list[object]:
        """`COLUMNS` of a run but for its block and place."""
        fired = {
            self.detectors[sample.detector, sample.action]: sample.stopped_at
            for sample in self.watched[plain.run]
            if sample.stopped_at is not None
        }
        return [
            plain.model, plain.dataset, plain.item_id, plain.sample_index, self.labels[plain.key],
            plain.budget, plain.penalty, _is_full(plain), plain.tokens, plain.correct, plain.status,
            fired,
        ]  # fmt: skip

    def _continued(self, sample: Sample, plain: Sample, text: str) -> str | None:
        """The text of a run that went on after a verdict; None where the run's own begins so."""
        if sample.record == plain.record:
            return None
        (filled,) = with_text([sample], self.store)
        return None if text.startswith(filled.text or "") else filled.text


def _is_full(sample: Sample) -> bool:
    """Whether the others of its problem are measured against it."""
    return (sample.backend, sample.penalty) == ("full", "none")


def _json(values: object) -> str:
    # Escaped to ASCII: half a surrogate pair in a name is JSON but not UTF-8.
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _deflated(text: str) -> str:
    # Level 9 takes three times as long and gives 0.2% less.
    return base64.b64encode(zlib.compress(text.encode("ascii"), 7)).decode("ascii")


def spelled(pieces: Iterable[bytes]) -> tuple[str, list[int]]:
    """The text, and the UTF-16 units that each token adds; a split character counts once."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    texts = [decode(piece) for piece in pieces]
    if texts:
        texts[-1] += decode(b"", True)
    return "".join(texts), [len(text.encode("utf-16-le")) // 2 for text in texts]


def _parting(left: tuple[int, ...], right: tuple[int, ...]) -> int | None:
    """Tokens until the first that differs, or until the shorter ends; None where none does."""
    if left == right:
        return None
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(left, right)))  # noqa: B905


def _keys(trace: Trace, tokens: int) -> list[tuple[int, int]]:
    """Keys read per token up to each check, over layers and KV heads, as costs count them."""
    checks = [check for check in trace.checks if check.tokens < tokens] + [trace.cost_at(tokens)]
    points = [(0, 0.0), *((check.tokens, check.keys_read) for check in checks)]
    return [
        (after, round((read - before_read) / (after - before)))
        for (before, before_read), (after, read) in pairwise(points)
        if after > before
    ]

"""Traces as the page holds them: one compressed block a problem, and an index of their runs."""

from __future__ import annotations

import base64
import codecs
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

from experiments.grid.answers import last_boxed
from experiments.report.names import detector_name, series
from experiments.report.page.runs import PageRun, by_worth
from experiments.report.row import DetectorAction, ReportRow
from experiments.report.tables.backends import parts
from experiments.store.samples.replay import with_text
from experiments.store.samples.sample import Key, Sample
from experiments.store.store import Record
from experiments.store.study import Study
from lil import Trace

#: What the page has of a run before its block is read, in this order.
COLUMNS = (
    "block", "at", "model", "dataset", "item", "sample", "backend", "budget", "penalty", "full",
    "tokens", "correct", "status", "fired",
)  # fmt: skip

#: Characters of the page around a block, at most, and of the index about a run, in most cases.
AROUND, _LINE = 80, 100

#: 9 takes three times as long and gives 0.2% less.
_LEVEL = 7

Pair = tuple[str, str, str, int]


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
        """Characters of all of it, with what stands around each block on the page."""
        return sum(len(block) + AROUND for block in [self.index, *self.blocks])


@dataclass(frozen=True)
class _PackedRun:
    """A run with what its block says of it, as JSON."""

    run: PageRun
    prompt: str
    gold: str | None
    text: str


def pack(
    study: Study, runs: Sequence[PageRun], rows: Sequence[ReportRow], limit: int
) -> TraceBlocks:
    """As many runs as fit, those `by_worth` gives first.

    Args:
        study: where their traces are.
        runs: all that have a text, in the order of the plan.
        rows: of the same samples; they know what tells backends of one name apart.
        limit: characters that index and blocks may have together.
    """
    pairs = list(dict.fromkeys((s.detector, s.action) for run in runs for s in run.watched))
    detectors = {pair: detector_name(*pair, pairs) for pair in pairs}
    labels = _labels(rows)
    packed: list[_PackedRun] = []
    full: dict[Pair, tuple[int, ...]] = {}
    size = 0
    for run in by_worth(runs):
        packed.append(_packed(study, run, full, detectors))
        size += len(_deflated(packed[-1].text)) + _LINE
        if size > limit:
            break
    while True:  # the texts of a problem compress better together, its index line adds to them
        blocks = _blocks(packed, runs, labels, detectors)
        if blocks.size <= limit or not packed:
            return blocks
        packed = packed[: min(len(packed) - 1, len(packed) * limit // blocks.size)]


def deflated(values: object) -> str:
    """JSON, compressed, in characters that mean nothing to HTML."""
    return _deflated(_json(values))


def _json(values: object) -> str:
    # Escaped to ASCII: half a surrogate pair in a name is JSON but not UTF-8.
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("ascii"), _LEVEL)).decode("ascii")


def _blocks(
    packed: Sequence[_PackedRun],
    runs: Sequence[PageRun],
    labels: Mapping[Key, str],
    detectors: Mapping[DetectorAction, str],
) -> TraceBlocks:
    """Problems in the order of the plan, full attention first of each."""
    place = {id(run): at for at, run in enumerate(runs)}
    first: dict[Pair, int] = {}
    for at, run in enumerate(runs):
        first.setdefault(run.plain.pair, at)
    ordered = sorted(packed, key=lambda p: (first[p.run.plain.pair], place[id(p.run)]))
    index: list[list[object]] = []
    blocks: list[str] = []
    for _, group in groupby(ordered, key=lambda packed_run: packed_run.run.plain.pair):
        part = list(group)
        for at, packed_run in enumerate(part):
            plain = packed_run.run.plain
            fired = {
                detectors[sample.detector, sample.action]: sample.stopped_at
                for sample in packed_run.run.watched
                if sample.stopped_at is not None
            }
            index.append([
                len(blocks), at, plain.model, plain.dataset, plain.item_id, plain.sample_index,
                labels[plain.key], plain.budget, plain.penalty,
                packed_run.run.run.configuration.is_full, plain.tokens, plain.correct,
                plain.status, fired,
            ])  # fmt: skip
        head = _json({"prompt": part[0].prompt, "gold": part[0].gold})
        texts = ",".join(packed_run.text for packed_run in part)
        blocks.append(_deflated(f'{head[:-1]},"runs":[{texts}]}}'))
    lines = deflated({"columns": COLUMNS, "runs": index})
    return TraceBlocks(lines, blocks, len(packed), len(runs))


def _labels(rows: Sequence[ReportRow]) -> dict[Key, str]:
    """What tables call each configuration's backend, by the key of its rows."""
    return {
        row.key: label
        for part in parts(rows)
        for label, line in series(part).items()
        for row in line
    }


def _packed(
    study: Study,
    run: PageRun,
    full: dict[Pair, tuple[int, ...]],
    detectors: Mapping[DetectorAction, str],
) -> _PackedRun:
    """Read a run's trace; `full` holds the tokens of full attention's read so far."""
    record = study.store.get(run.run.id)
    assert record is not None, "a run with a sample is in the store"
    trace, plain = record.trace(), run.plain
    tokens = plain.tokens or 0
    text, lengths = spelled(trace.pieces[:tokens] if tokens < trace.tokens else trace.text_pieces)
    ids = trace.new_ids[:tokens]
    if run.run.configuration.is_full:
        full[plain.pair] = ids
    partner = full.get(plain.pair)
    values = {
        "id": record.id,
        "text": text,
        "lengths": lengths,
        "answer": plain.answer if plain.answer is not None else last_boxed(text),
        "finish": plain.finish,
        "parts": None if partner is None else _parting(ids, partner),
        "curve": [point for point in plain.curve if point[0] is not None],
        "keys": _keys(trace, tokens),
        "watched": [
            {
                "name": detectors[sample.detector, sample.action],
                "action": sample.action,
                "at": sample.stopped_at,
                "tokens": sample.tokens,
                "paid": sample.paid_tokens,
                "correct": sample.correct,
                "status": sample.status,
                "text": _own_text(sample, record, study, text),
            }
            for sample in run.watched
        ],
    }
    accepted = run.run.problem.gold
    gold = " or ".join(accepted) if isinstance(accepted, tuple) else accepted
    return _PackedRun(run, trace.prompt_bytes.decode(errors="replace"), gold, _json(values))


def spelled(pieces: Iterable[bytes]) -> tuple[str, list[int]]:
    """The text, and how many UTF-16 units of it each token adds: what a browser counts in.

    A token that ends inside a character adds what is complete; the next one adds that character.
    """
    pieces = list(pieces)
    whole = b"".join(pieces)
    if whole.isascii():  # most are, and the long way takes ten times as long
        return whole.decode("ascii"), list(map(len, pieces))
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    texts = [decode(piece) for piece in pieces]
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


def _own_text(sample: Sample, record: Record, study: Study, text: str) -> str | None:
    """The text of a run that went on after a detector's verdict; None where it is the beginning of
    the run's own.
    """
    if sample.record == record.id:
        return None
    (filled,) = with_text([sample], study.store)
    return None if text.startswith(filled.text or "") else filled.text

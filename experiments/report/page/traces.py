"""Traces as the page holds them: one compressed block a problem, and an index of their runs."""

from __future__ import annotations

import base64
import codecs
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from typing import Any

from experiments.grid.answers import last_boxed
from experiments.report.names import detector_name, series
from experiments.report.page.runs import PageRun, by_worth
from experiments.report.row import ReportRow, by_penalty
from experiments.store.samples.replay import with_text
from experiments.store.samples.sample import Key, Sample
from experiments.store.store import Record
from experiments.store.study import Study
from lil import Trace

#: What the page keeps of a run before its block is read, in this order.
COLUMNS = (
    "block", "at", "model", "dataset", "item", "sample", "backend", "budget", "penalty", "full",
    "tokens", "correct", "status", "fired",
)  # fmt: skip

#: Characters of the page around a block, at most.
AROUND = 80

#: Characters of the index about a run, at most in most cases.
_LINE = 100

#: The first runs, and then one of so many, are compressed to learn how much smaller others become.
_FIRST, _THEN = 32, 8

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
class _Read:
    """A chosen run with what its block says of it, as JSON."""

    one: PageRun
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
    detectors = _detectors(runs)
    chosen: list[_Read] = []
    full: dict[Pair, tuple[int, ...]] = {}
    problems: set[Pair] = set()
    size = squeezed = plain = 0
    for at, one in enumerate(by_worth(runs)):
        read = _read(study, one, full, detectors)
        if at < _FIRST or at % _THEN == 0:
            own = len(_squeezed(read.text))
            squeezed, plain = squeezed + own, plain + len(read.text)
        else:
            own = len(read.text) * squeezed // plain
        size += own + _LINE
        if one.plain.pair not in problems:
            size += len(deflated([read.prompt, read.gold])) + AROUND
        problems.add(one.plain.pair)
        if size > limit:
            break
        chosen.append(read)
    labels = _labels(rows)
    while True:
        packed = _packed(chosen, runs, labels, detectors)
        if packed.size <= limit or not chosen:
            return packed
        chosen = chosen[: len(chosen) * limit // packed.size]


def deflated(values: object) -> str:
    """JSON, compressed, in characters that mean nothing to HTML."""
    return _squeezed(_json(values))


def _json(values: object) -> str:
    # Escaped to ASCII: half a surrogate pair in a name is JSON but not UTF-8.
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _squeezed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("ascii"), _LEVEL)).decode("ascii")


def _packed(
    chosen: Sequence[_Read],
    runs: Sequence[PageRun],
    labels: Mapping[Key, str],
    detectors: Mapping[tuple[str, str], str],
) -> TraceBlocks:
    """Problems in the order of the plan, full attention first of each."""
    place = {id(one): at for at, one in enumerate(runs)}
    first: dict[Pair, int] = {}
    for one in runs:
        first.setdefault(one.plain.pair, place[id(one)])
    ordered = sorted(chosen, key=lambda read: (first[read.one.plain.pair], place[id(read.one)]))
    index: list[list[object]] = []
    blocks: list[str] = []
    for _, group in groupby(ordered, key=lambda read: read.one.plain.pair):
        part = list(group)
        for at, read in enumerate(part):
            label = labels[read.one.plain.key]
            index.append([len(blocks), at, *_line(read.one, label, detectors)])
        held = _json({"prompt": part[0].prompt, "gold": part[0].gold})
        texts = ",".join(read.text for read in part)
        blocks.append(_squeezed(f'{held[:-1]},"runs":[{texts}]}}'))
    return TraceBlocks(
        deflated({"columns": COLUMNS, "runs": index}), blocks, len(chosen), len(runs)
    )


def _line(one: PageRun, label: str, detectors: Mapping[tuple[str, str], str]) -> list[object]:
    plain = one.plain
    fired = {
        detectors[sample.detector, sample.action]: sample.stopped_at
        for sample in one.watched
        if sample.stopped_at is not None
    }
    return [
        plain.model, plain.dataset, plain.item_id, plain.sample_index, label, plain.budget,
        plain.penalty, one.run.configuration.is_full, plain.tokens, plain.correct, plain.status, fired,
    ]  # fmt: skip


def _labels(rows: Sequence[ReportRow]) -> dict[Key, str]:
    """What tables call each configuration's backend, by the key of its rows."""
    plain = [row for row in rows if row.detector == "none"]
    apart = {(row.model, row.dataset) for row in plain}
    return {
        row.key: label
        for model, dataset in apart
        for part in by_penalty(
            [row for row in plain if (row.model, row.dataset) == (model, dataset)]
        ).values()
        for label, line in series(part).items()
        for row in line
    }


def _detectors(runs: Sequence[PageRun]) -> dict[tuple[str, str], str]:
    """What to call each detector and its action."""
    known = list(dict.fromkeys((s.detector, s.action) for one in runs for s in one.watched))
    return {one: detector_name(*one, known) for one in known}


def _read(
    study: Study,
    one: PageRun,
    full: dict[Pair, tuple[int, ...]],
    detectors: Mapping[tuple[str, str], str],
) -> _Read:
    """Read a run's trace; `full` holds the tokens of full attention's read so far."""
    record = study.store.get(one.run.id)
    assert record is not None, "a run with a sample is in the store"
    trace = record.trace()
    plain = one.plain
    kept = plain.tokens or 0
    pieces = trace.pieces[:kept] if kept < trace.tokens else trace.text_pieces
    text, lengths = spelled(pieces)
    ids = trace.new_ids[:kept]
    if one.run.configuration.is_full:
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
        "keys": _keys(trace, kept),
        "watched": [
            _watched(
                sample, text, _own(sample, record, study), detectors[sample.detector, sample.action]
            )
            for sample in one.watched
        ],
    }
    accepted = one.run.problem.gold
    gold = " or ".join(accepted) if isinstance(accepted, tuple) else accepted
    return _Read(one, trace.prompt_bytes.decode(errors="replace"), gold, _json(values))


def spelled(pieces: Iterable[bytes]) -> tuple[str, list[int]]:
    """The text, and how many UTF-16 units of it each token adds: what a browser counts in.

    A token that ends inside a character adds what is complete; the next one adds that character.
    """
    pieces = list(pieces)
    whole = b"".join(pieces)
    if whole.isascii():  # most are, and the long way takes ten times as long
        return whole.decode("ascii"), list(map(len, pieces))
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    parts = [decode(piece) for piece in pieces]
    if parts:
        parts[-1] += decode(b"", True)
    return "".join(parts), [len(part.encode("utf-16-le")) // 2 for part in parts]


def _parting(mine: tuple[int, ...], theirs: tuple[int, ...]) -> int | None:
    """Tokens until the first that differs, or until the shorter ends; None where none does."""
    if mine == theirs:
        return None
    same = takewhile(lambda both: both[0] == both[1], zip(mine, theirs, strict=False))
    return sum(1 for _ in same)


def _keys(trace: Trace, kept: int) -> list[tuple[int, int]]:
    """Keys read per token up to each check, over layers and KV heads, as costs count them."""
    checks = [check for check in trace.checks if check.tokens < kept] + [trace.cost_at(kept)]
    points = [(0, 0.0), *((check.tokens, check.keys_read) for check in checks)]
    return [
        (after, round((read - before_read) / (after - before)))
        for (before, before_read), (after, read) in pairwise(points)
        if after > before
    ]


def _own(sample: Sample, record: Record, study: Study) -> str:
    """The text of a run that went on after a detector's verdict; "" where it ended there."""
    if sample.record == record.id:
        return ""
    (filled,) = with_text([sample], study.store)
    return filled.text or ""


def _watched(sample: Sample, text: str, own: str, name: str) -> dict[str, Any]:
    """What a detector made of a run; its own text where it is not the beginning of the run's."""
    return {
        "name": name,
        "action": sample.action,
        "at": sample.stopped_at,
        "tokens": sample.tokens,
        "paid": sample.paid_tokens,
        "correct": sample.correct,
        "status": sample.status,
        "text": None if text.startswith(own) else own,
    }

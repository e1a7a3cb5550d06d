"""Traces as the page holds them: one compressed block a problem, and an index of their runs."""

from __future__ import annotations

import base64
import codecs
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, takewhile, zip_longest

from experiments.grid.answers import last_boxed
from experiments.report.names import detector_name, series
from experiments.report.row import DetectorAction, ReportRow
from experiments.report.tables.backends import parts
from experiments.store.samples.replay import with_text
from experiments.store.samples.sample import Key, Sample, is_usable
from experiments.store.store import Store
from lil import Trace

#: What the page has of a run before its block is read, in this order.
COLUMNS = (
    "block", "at", "model", "dataset", "item", "sample", "backend", "budget", "penalty", "full",
    "tokens", "correct", "status", "fired",
)  # fmt: skip

#: Stands on the page where it cannot show all.
RULE = (
    "of every configuration the longest run, the shortest, one wrong though full attention is "
    "right and one where each detector fired, then runs in the order of the problems; each with "
    "full attention's of the same problem"
)

#: Characters of the page around a block, at most, and of the index about a run, in most cases.
_AROUND, _LINE = 80, 100

Pair = tuple[str, str, str, int]


@dataclass(frozen=True)
class PageRun:
    """A run of which there is a text: its sample as decoded, and under each detector."""

    plain: Sample
    watched: tuple[Sample, ...]

    @property
    def is_full(self) -> bool:
        """Whether the others of its problem are measured against it."""
        return (self.plain.backend, self.plain.penalty) == ("full", "none")


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
        return sum(len(block) + _AROUND for block in [self.index, *self.blocks])


# ---------------------------------------------------------------- which runs


def page_runs(samples: Sequence[Sample]) -> list[PageRun]:
    """Every run that has a text, in the order of the samples."""
    by_run: dict[tuple[object, ...], list[Sample]] = defaultdict(list)
    for sample in filter(is_usable, samples):
        by_run[sample.run].append(sample)
    return [
        PageRun(sample, tuple(other for other in by_run[sample.run] if other.detector != "none"))
        for sample in samples
        if sample.detector == "none" and is_usable(sample)
    ]


def by_worth(runs: Sequence[PageRun]) -> Iterator[PageRun]:
    """All of them, those a page should rather have first, full attention's before its partners.

    Configurations take turns, so that none is left without while another has two.
    """
    full = {run.plain.pair: run for run in runs if run.is_full}
    configurations: dict[Key, list[PageRun]] = defaultdict(list)
    for run in runs:
        configurations[run.plain.key].append(run)
    turns = zip_longest(*(_examples(part, full) for part in configurations.values()))
    seen: set[int] = set()
    for run in filter(None, chain.from_iterable(turns)):
        for either in filter(None, (full.get(run.plain.pair), run)):
            if id(either) not in seen:
                seen.add(id(either))
                yield either


def _examples(runs: list[PageRun], full: Mapping[Pair, PageRun]) -> list[PageRun | None]:
    """An example of every kind, in the same places for all configurations, then all runs."""

    def is_lost(run: PageRun) -> bool:
        partner = full.get(run.plain.pair)
        return run.plain.correct is False and partner is not None and bool(partner.plain.correct)

    by_length = sorted(runs, key=lambda run: run.plain.tokens or 0)
    fired: dict[DetectorAction, PageRun | None] = {}
    for run in runs:
        for sample in run.watched:
            pair = sample.detector, sample.action
            if fired.get(pair) is None:
                fired[pair] = run if sample.stopped_at is not None else None
    lost = next(filter(is_lost, runs), None)
    return [by_length[-1], by_length[0], lost, *fired.values(), *runs]


# ---------------------------------------------------------------- as text


def pack(
    store: Store, samples: Sequence[Sample], rows: Sequence[ReportRow], limit: int
) -> TraceBlocks:
    """As many runs as fit, those `by_worth` gives first.

    Args:
        store: where their traces are.
        samples: of a report.
        rows: of the same samples; they know what tells backends of one name apart.
        limit: characters that index and blocks may have together.
    """
    runs = page_runs(samples)
    packer = _Packer(store, runs, rows)
    size = 0
    packed = []
    for run in by_worth(runs):
        packed.append(run)
        size += len(_deflated(packer.text(run))) + _LINE
        if size > limit:
            break
    while True:  # the texts of a problem compress better together, its index line adds to them
        blocks = packer.blocks(packed)
        if blocks.size <= limit or not packed:
            return blocks
        packed = packed[: min(len(packed) - 1, len(packed) * limit // blocks.size)]


class _Packer:
    """Makes blocks of runs; `text` has to have seen a run, full attention's before its partners."""

    def __init__(self, store: Store, runs: Sequence[PageRun], rows: Sequence[ReportRow]) -> None:
        self.store, self.runs = store, runs
        pairs = list(dict.fromkeys((s.detector, s.action) for run in runs for s in run.watched))
        self.detectors = {pair: detector_name(*pair, pairs) for pair in pairs}
        self.labels = {
            row.key: label
            for part in parts(rows)
            for label, line in series(part).items()
            for row in line
        }
        self.full: dict[Pair, tuple[int, ...]] = {}  # tokens of full attention's
        self.texts: dict[int, str] = {}
        self.prompts: dict[Pair, str] = {}

    def text(self, run: PageRun) -> str:
        """What a block says of a run, as JSON."""
        plain = run.plain
        record = self.store.get(plain.record or "")
        assert record is not None, "a run with a sample is in the store"
        trace, tokens = record.trace(), plain.tokens or 0
        pieces = trace.pieces[:tokens] if tokens < trace.tokens else trace.text_pieces
        text, lengths = spelled(pieces)
        ids = trace.new_ids[:tokens]
        if run.is_full:
            self.full[plain.pair] = ids
        self.prompts.setdefault(plain.pair, trace.prompt_bytes.decode(errors="replace"))
        partner = self.full.get(plain.pair)
        watched = [
            {
                "name": self._name(sample),
                "action": sample.action,
                "at": sample.stopped_at,
                "tokens": sample.tokens,
                "paid": sample.paid_tokens,
                "correct": sample.correct,
                "text": self._continued(sample, plain, text),
            }
            for sample in run.watched
        ]
        values = {
            "id": record.id,
            "text": text,
            "lengths": lengths,
            "answer": plain.answer if plain.answer is not None else last_boxed(text),
            "finish": plain.finish,
            "parts": None if partner is None else _parting(ids, partner),
            "curve": [point for point in plain.curve if point[0] is not None],
            "keys": _keys(trace, tokens),
            "watched": watched,
        }
        self.texts[id(run)] = _json(values)
        return self.texts[id(run)]

    def blocks(self, packed: Sequence[PageRun]) -> TraceBlocks:
        """Problems in the order of the samples, full attention first of each."""
        place = {id(run): at for at, run in enumerate(self.runs)}
        first: dict[Pair, int] = {}
        for at, run in enumerate(self.runs):
            first.setdefault(run.plain.pair, at)
        ordered = sorted(packed, key=lambda run: (first[run.plain.pair], place[id(run)]))
        index: list[list[object]] = []
        blocks: list[str] = []
        for pair, group in groupby(ordered, key=lambda run: run.plain.pair):
            part = list(group)
            index += [[len(blocks), at, *self._line(run)] for at, run in enumerate(part)]
            head = _json({"prompt": self.prompts[pair], "gold": part[0].plain.gold})
            texts = ",".join(self.texts[id(run)] for run in part)
            blocks.append(_deflated(f'{head[:-1]},"runs":[{texts}]}}'))
        lines = _deflated(_json({"columns": COLUMNS, "runs": index}))
        return TraceBlocks(lines, blocks, len(packed), len(self.runs))

    def _line(self, run: PageRun) -> list[object]:
        plain = run.plain
        fired = {
            self._name(sample): sample.stopped_at
            for sample in run.watched
            if sample.stopped_at is not None
        }
        return [
            plain.model, plain.dataset, plain.item_id, plain.sample_index, self.labels[plain.key],
            plain.budget, plain.penalty, run.is_full, plain.tokens, plain.correct, plain.status,
            fired,
        ]  # fmt: skip

    def _name(self, sample: Sample) -> str:
        return self.detectors[sample.detector, sample.action]

    def _continued(self, sample: Sample, plain: Sample, text: str) -> str | None:
        """The text of a run that went on after a verdict; None where the run's own begins so."""
        if sample.record == plain.record:
            return None
        (filled,) = with_text([sample], self.store)
        return None if text.startswith(filled.text or "") else filled.text


def _json(values: object) -> str:
    # Escaped to ASCII: half a surrogate pair in a name is JSON but not UTF-8.
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _deflated(text: str) -> str:
    # Level 9 takes three times as long and gives 0.2% less.
    return base64.b64encode(zlib.compress(text.encode("ascii"), 7)).decode("ascii")


def spelled(pieces: Iterable[bytes]) -> tuple[str, list[int]]:
    """The text, and how many UTF-16 units of it each token adds: what a browser counts in.

    A token that ends inside a character adds what is complete; the next one adds that character.
    """
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

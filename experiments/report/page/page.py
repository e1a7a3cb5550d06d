"""The report as one HTML file: headline, conditions, figures, tables, and the texts themselves."""

from __future__ import annotations

import base64
import codecs
import hashlib
import itertools
import json
import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import chain, pairwise, takewhile, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.answers import last_boxed
from experiments.report.charts import ChartSet
from experiments.report.names import detector_name, series
from experiments.report.row import ReportRow
from experiments.report.tables.backends import parts
from experiments.report.tables.grid import Grid, escape, html_table
from experiments.store.files.filesystem import require_file, write_atomically
from experiments.store.files.records import Record
from experiments.store.samples.replay import with_text
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.store import Store
from lil import Trace

if TYPE_CHECKING:
    from experiments.report.report import Report

NAME = "report.html"

#: Most bytes of the page's traces.
MOST = 20_000_000


@dataclass(frozen=True)
class PageFile:
    """A page that was written.

    Attributes:
        path: where.
        size: bytes of its traces.
        packed, of: runs whose text is in it, and runs that have one.
    """

    path: Path
    size: int
    packed: int
    of: int


def write(
    path: Path,
    report: Report,
    store: Store,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    most: int = MOST,
) -> PageFile:
    """Write a report as one HTML page, atomically, with at most `most` bytes of traces."""
    require_file(path, "page")
    packed = pack(store, report.samples, report.rows, most)
    names = ["index", *(f"problem-{at}" for at in range(len(packed.blocks)))]
    blocks = "\n".join(
        f'<script type="application/x-lil-traces" id="{name}">{block}</script>'
        for name, block in zip(names, [packed.index, *packed.blocks], strict=True)
    )
    # A name may hold the same characters; the mark is the last of them.
    before, _, after = _page(report, sets, tables, about, packed).rpartition("{{traces}}")
    try:
        write_atomically(path, before + blocks + after)
    except InvalidValue as error:
        raise InvalidValue("page", str(path), f"a file to write ({error.__cause__})") from error
    return PageFile(path, len(blocks), packed.packed, packed.of)


def _page(
    report: Report,
    sets: Sequence[ChartSet],
    tables: Sequence[Grid],
    about: Mapping[str, Any],
    packed: TraceBlocks,
) -> str:
    """The page but for its blocks."""
    style, script = _asset("page.css"), _asset("page.js")
    models = ", ".join(str(model.get("name")) for model in about.get("models", ()))
    charts = [asdict(chart) | {"of": of.subject} for of in sets for chart in of.charts]
    # Tables of the same columns are side by side where there is room.
    groups = itertools.groupby(enumerate(tables), key=lambda numbered: numbered[1].columns)
    grids = ("".join(html_table(grid, at) for at, grid in group) for _, group in groups)
    shown = f"All {packed.of:,} runs that have a text."
    if packed.packed < packed.of:
        shown = f"{packed.packed:,} of {packed.of:,} runs: the first problems of every data set."
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}",
        "title": escape(models or "report"),
        "style": style,
        "script": script,
        "headline": escape(report.headline),
        "notices": "".join(f'<p class="note">{escape(notice)}</p>' for notice in report.notices),
        "conditions": conditions(about),
        # No text in JSON can end the script: HTML looks for `<` alone.
        "charts": json.dumps(charts, allow_nan=False).replace("<", "\\u003c"),
        "tables": "\n".join(f'<div class="tables">{html}</div>' for html in grids),
        "shown": escape(shown),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda at: parts.get(at[1], at[0]), _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The digest by which a browser accepts the page's style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---------------------------------------------------------------- conditions

#: What of a manifest is elsewhere on the page.
_ELSEWHERE = (
    *("headline", "notices", "figures", "page"),
    *("models", "detectors", "arguments", "config"),
)


def conditions(about: Mapping[str, Any]) -> str:
    """What the numbers were made with: models, command, configuration; then the rest, folded."""
    arguments, config = about.get("arguments"), about.get("config", {})
    lines = {
        "model": [_model(model) for model in about.get("models", ())],
        "command": shlex.join(["lil", *map(str, arguments)]) if arguments else None,
        "detectors": [_detector(entry) for entry in about.get("detectors", ())] or "none",
        **{key: value for key, value in config.items() if key not in _ELSEWHERE},
    }
    more = _list({key: value for key, value in about.items() if key not in _ELSEWHERE})
    return f"{_list(lines)}<details><summary>Machine, packages, counts</summary>{more}</details>"


def _list(lines: Mapping[str, object]) -> str:
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, value in lines.items()
        if value not in (None, "", [], {})
        for text in [", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value]
    )
    return f'<dl class="conditions">{shown}</dl>'


def _model(model: Mapping[str, Any]) -> str:
    text = f"{model.get('name')} {model.get('digest')}"
    if "key_layers" not in model:
        return text
    return (
        f"{text}, budgets, keys and bytes are of the {model['key_layers']} of its "
        f"{model['layers']} layers that hold keys"
    )


def _detector(entry: Mapping[str, Any]) -> str:
    """A detector with its parameters."""
    inside = ", ".join(f"{key} = {value}" for key, value in entry.items() if key != "name")
    return f"{entry.get('name')} ({inside})" if inside else str(entry.get("name"))


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

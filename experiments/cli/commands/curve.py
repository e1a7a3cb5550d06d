"""`lil curve`: how a text compresses as it grows."""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

import lil
from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import TextStop, require_texts, sentence, stop_of, stops_of
from experiments.grid import models
from experiments.grid.config import Config, check
from experiments.grid.detectors import build_detectors
from experiments.grid.models import Tokenizer
from experiments.report.exports import check_file
from experiments.store.files.filesystem import whole_file
from experiments.store.labels import labels
from experiments.store.store import Store
from lil.compression.curves import entropy_bounds

EXAMPLES = """\
examples:
  lil curve essay.txt                       one point every 1000 bytes
  lil curve essay.txt loop.txt --every 250 --plot curves.png
  lil curve lil-out/demo:3fa9               a stored trace, by the beginning of its id
      (ids: lil curve lil-out/demo, or the column `id` of Store("lil-out/demo").frame())
  lil curve lil-out/demo:3fa9 --json
  lil curve lil-out/demo:3fa9 --detector guardian,cycle
      and where they would have stopped it
  lil curve essay.txt --detector 'guardian(f=100)' --tokenizer ./my-model --plot curve.png
      the same of any text, cut into the model's tokens; a mark in the figure
  grep -v '^#' log.txt | lil curve -
"""

Point = tuple[int | None, int, int]

_LINES = 32  # of a table

_BLOCKS = " ▁▂▃▄▅▆▇█"


def add_arguments(parser: Parser) -> None:
    """Flags of `lil curve`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a text file, - for standard input, or STORE:ID"
    )
    step = parser.add_mutually_exclusive_group()
    step.add_argument(
        "--every",
        type=int,
        metavar="BYTES",
        help="bytes between two points, of a text or of a trace's text (1000; of a trace, "
        "--every-tokens 50)",
    )
    step.add_argument(
        "--every-tokens",
        type=int,
        metavar="N",
        help="tokens between two points of a trace; a text has none",
    )
    parser.add_argument("--codec", default="deflate", help="compressor (deflate)")
    parser.add_argument(
        "--bounds", action="store_true", help="bounds of the text's entropy, with --codec lz77"
    )
    group = parser.add_argument_group("detectors: where they would have stopped it")
    group.add_argument("--detector", metavar="NAME|FILE,...", help="such as guardian,cycle")
    group.add_argument(
        "--tokenizer", metavar="ID|DIR", help="the model whose tokens they count; a trace has some"
    )
    parser.add_argument("--plot", metavar="PNG", help="draw compressed against original bytes")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print table and drawing of every file."""
    for name in ("every", "every_tokens"):
        if (given := getattr(args, name)) is not None and given < 1:
            raise InvalidValue(name, given, "at least 1")
    ahead = _lookahead(args.codec) if args.bounds else None
    if args.plot is not None:
        check_file("plot", args.plot)
    for name in args.files:
        _require_name(name)
    detectors = _detectors(args)
    texts = {name: _Text.read(name, args) for name in args.files}
    tokenizer = _tokenizer(texts.values(), args) if detectors else None
    stops = {name: text.stops(detectors, tokenizer) for name, text in texts.items()}
    curves = {name: text.curve(args) for name, text in texts.items()}
    for name, points in curves.items():
        shown = _some(points)
        console.print(_table(name, shown))
        if len(shown) < len(points):
            line = f"{len(shown)} of {len(points):,} points; --json has them all"
            console.print(line, highlight=False)
        console.print(f"ratio  {_sparkline(points)}", highlight=False)
        if bounds := _bounds(points, ahead):
            least, most = bounds
            console.print(f"entropy  {least:.3f} to {most:.3f} bytes a byte", highlight=False)
        for one in stops[name]:
            console.print(sentence(one), highlight=False, markup=False, soft_wrap=True)
    if args.plot:
        _plot(curves, stops, Path(args.plot))
        console.print(f"figure: {args.plot}", highlight=False, markup=False)
    return Done(
        [
            _document(name, points, args.codec)
            | ({"entropy_bounds": _bounds(points, ahead)} if args.bounds else {})
            | ({"detectors": stops[name]} if detectors else {})
            for name, points in curves.items()
        ]
    )


def _require_name(name: str) -> None:
    """Refuse what no file can be called."""
    try:
        Path(name).exists()
    except (OSError, ValueError) as error:
        raise InvalidValue("file", name, f"a name that a file can have ({error})") from error


def _lookahead(codec: str) -> int:
    """The codec's look-ahead buffer, in symbols, if its ratios are bounds of anything."""
    ahead = lil.codecs.find(codec).lookahead
    if ahead is None:
        allowed = "lz77, or another of fixed-length codewords, for --bounds"
        raise InvalidValue("codec", codec, allowed)
    return ahead


def _bounds(points: Sequence[Point], ahead: int | None) -> tuple[float, float] | None:
    """Bounds of the whole text's entropy, in bytes a byte; None without a text."""
    ratio = _ratio(points[-1]) if points else None
    return None if ahead is None or ratio is None else entropy_bounds(ratio, ahead)


@dataclass(frozen=True)
class _Text:
    """What was named: a text, or a stored trace."""

    name: str
    data: bytes
    trace: lil.Trace | None = None

    @classmethod
    def read(cls, name: str, args: argparse.Namespace) -> _Text:
        path = Path(name)
        folder, colon, id_ = name.rpartition(":")
        if colon and not path.exists() and Path(folder).is_dir():
            trace = _trace(Path(folder), id_)
            return cls(name, b"".join(trace.text_pieces), trace)
        if path.is_dir():
            raise InvalidValue("file", name, f"a file, or {name}:ID with one of {_some_ids(path)}")
        if args.every_tokens:
            allowed = f"--every BYTES: the tokens of {name} are not known, those of a trace are"
            raise InvalidValue("every_tokens", args.every_tokens, allowed)
        try:
            return cls(name, sys.stdin.buffer.read() if name == "-" else path.read_bytes())
        except OSError as error:
            near = [str(path.parent / p.name) for p in path.parent.glob("*")]
            allowed = f"a readable file, - for standard input, or STORE:ID ({error.strerror})"
            raise InvalidValue("file", name, allowed, near) from error

    def curve(self, args: argparse.Namespace) -> list[Point]:
        if self.trace is not None and not args.every:
            every = args.every_tokens or 50
            return lil.token_curve(self.trace.text_pieces, every_tokens=every, codec=args.codec)
        return lil.curve(self.data, every_bytes=args.every or 1000, codec=args.codec)

    def stops(
        self, detectors: Sequence[lil.Detector], tokenizer: Tokenizer | None
    ) -> list[TextStop]:
        if self.trace is not None:
            pieces = self.trace.text_pieces
            for detector in detectors:
                detector.require_text(self.trace.prompt_bytes + b"".join(pieces))
            return [
                stop_of(label, pieces, lil.replay(self.trace, one))
                for label, one in zip(labels(detectors), detectors, strict=True)
            ]
        if tokenizer is None:  # no detector is asked for
            return []
        return stops_of(tokenizer.pieces(self.data.decode(errors="replace")), detectors)


def _detectors(args: argparse.Namespace) -> list[lil.Detector]:
    """Those asked for, with their own parameters."""
    if args.detector is None:
        if args.tokenizer is not None:
            raise InvalidValue("tokenizer", args.tokenizer, "--detector NAME beside it")
        return []
    asked = check({"detectors": args.detector}, "--detector")["detectors"]
    return build_detectors(Config(detectors=asked))


def _tokenizer(texts: Iterable[_Text], args: argparse.Namespace) -> Tokenizer | None:
    """Of texts whose tokens are not known; None where all are traces."""
    unknown = [text.name for text in texts if text.trace is None]
    if not unknown:
        return None
    if args.tokenizer is None:
        allowed = f"--tokenizer MODEL: detectors count tokens, and {unknown[0]} is a text"
        raise InvalidValue("tokenizer", None, allowed)
    detectors = _detectors(args)
    require_texts(detectors)
    models.quiet_transformers()
    found = models.find_tokenizer(args.tokenizer)
    for one in detectors:
        one.require_tokens(found.table)
    return found


def _trace(folder: Path, id_: str) -> lil.Trace:
    found = [record for record in Store(folder) if record.id.startswith(id_) and not record.failed]
    if len(found) != 1 or not id_:
        allowed = f"an id that names one trace, such as {_some_ids(folder)}"
        raise InvalidValue("id", id_, f"{allowed} ({len(found)} begin with it)")
    return found[0].trace()


def _some_ids(folder: Path) -> str:
    ids = [record.id for record in Store(folder) if not record.failed]
    return (
        ", ".join(ids[:3]) + ("..." if len(ids) > 3 else "") if ids else "no trace: it holds none"
    )


def _ratio(point: Point) -> float | None:
    return point[2] / point[1] if point[1] else None


def _some(points: Sequence[Point]) -> Sequence[Point]:
    """As many as one can read, at equal steps, with the first and the last."""
    if len(points) <= _LINES:
        return points
    return [points[round(i * (len(points) - 1) / (_LINES - 1))] for i in range(_LINES)]


def _table(name: str, points: Sequence[Point]) -> Table:
    table = Table(title=escape(name), title_justify="left", box=None)
    for column in ("tokens", "bytes", "compressed", "ratio", "growth"):
        table.add_column(column, justify="right")
    before = 0
    for point in points:
        tokens, raw, small = point
        ratio = _ratio(point)
        table.add_row(
            "—" if tokens is None else str(tokens),
            str(raw),
            str(small),
            "—" if ratio is None else f"{ratio:.3f}",
            str(small - before),
        )
        before = small
    return table


def _sparkline(points: Sequence[Point], width: int = 64) -> str:
    """The compression ratio from the first point to the last, one character a step, 0 to 1."""
    ratios = [ratio for ratio in map(_ratio, points) if ratio is not None]
    if not ratios:
        return "(empty)"
    step = max(1, -(-len(ratios) // width))
    shown = ratios[::step]
    marks = "".join(_BLOCKS[min(8, max(1, round(8 * min(ratio, 1.0))))] for ratio in shown)
    return f"{marks}  {ratios[0]:.3f} to {ratios[-1]:.3f}"


def _document(name: str, points: Sequence[Point], codec: str) -> dict[str, object]:
    return {
        "file": name,
        "codec": codec,
        "points": [
            {"tokens": t, "original_bytes": raw, "compressed_bytes": small, "ratio": _ratio(p)}
            for p in points
            for t, raw, small in [p]
        ],
    }


def _plot(
    curves: Mapping[str, list[Point]], stops: Mapping[str, list[TextStop]], path: Path
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, points in curves.items():
        (line,) = axes.plot([0, *(p[1] for p in points)], [0, *(p[2] for p in points)], label=name)
        for one, style in zip(stops[name], itertools.cycle(("--", ":", "-.")), strict=False):
            if one["fired_at"] is not None:
                axes.axvline(
                    one["kept_bytes"],
                    color=line.get_color(),
                    linestyle=style,
                    label=f"{one['detector']} stops {name}",
                )
    axes.set_xlabel("original bytes")
    axes.set_ylabel("compressed bytes")
    axes.legend()
    # In memory first: what a format or a full disk refuses leaves no half of a picture.
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=150, format=path.suffix[1:] or "png")
        with whole_file(path) as half:
            half.write_bytes(drawn.getvalue())
    except (OSError, ValueError) as error:
        raise InvalidValue(
            "plot", str(path), f"an image file that can be written ({error})"
        ) from error

"""`lil curve`: how a text compresses as it grows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import lil
from attention.errors import InvalidValue
from experiments.cli.console import Console, table
from experiments.cli.parser import Done, Parser
from experiments.cli.stores import find
from experiments.store.study import Study
from lil.compression.curves import Point

EXAMPLES = """\
examples:
  lil curve essay.txt                       one point every 1000 bytes
  lil curve essay.txt loop.txt --every 250
  lil curve lil-out/demo:3fa9               a stored trace, by the beginning of its id
  grep -v '^#' log.txt | lil curve -
"""

_LINES = 32  # of a table


def add_arguments(parser: Parser) -> None:
    """Flags of `lil curve`."""
    files = "a text file, - for standard input, or STORE:ID"
    parser.add_argument("files", nargs="+", metavar="FILE", help=files)
    every = "bytes between two points (1000; of a trace 50 tokens)"
    parser.add_argument("--every", type=int, metavar="BYTES", help=every)
    parser.add_argument("--codec", default="deflate", help="compressor (deflate)")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print a table of every file."""
    if args.every is not None and args.every < 1:
        raise InvalidValue("every", args.every, "at least 1")
    lil.codecs.find(args.codec)
    documents = []
    for name in args.files:
        points = _curve(name, args)
        _print(name, points, console)
        documents.append({"file": name, "codec": args.codec, "points": list(map(_point, points))})
    return Done(documents)


def _curve(name: str, args: argparse.Namespace) -> list[Point]:
    """Of a text that was named, or of the text of a stored trace."""
    path, (folder, colon, id_) = Path(name), name.rpartition(":")
    if colon and not path.exists() and Path(folder).is_dir():
        study, run = find(Study.each(Path(folder)), [id_] if id_ else [])
        record = study.store.get(run.id)
        if record is None:
            raise InvalidValue("id", id_, "a run that was decoded")
        pieces = record.trace().text_pieces
        if args.every is None:
            return lil.token_curve(pieces, every_tokens=50, codec=args.codec)
        return lil.curve(b"".join(pieces), every_bytes=args.every, codec=args.codec)
    if path.is_dir():
        raise InvalidValue("file", name, f"a file, or {name}:ID with the beginning of a run's id")
    try:
        text = sys.stdin.buffer.read() if name == "-" else path.read_bytes()
    except (OSError, ValueError) as error:
        near = [] if "\0" in name else [str(path.parent / p.name) for p in path.parent.glob("*")]
        allowed = f"a readable file, - for standard input, or STORE:ID ({error})"
        raise InvalidValue("file", name, allowed, near) from error
    return lil.curve(text, every_bytes=args.every or 1000, codec=args.codec)


def _point(point: Point) -> dict[str, float | None]:
    tokens, original, compressed = point
    sizes = {"original_bytes": original, "compressed_bytes": compressed}
    return {"tokens": tokens, **sizes, "ratio": compressed / original if original else None}


def _print(name: str, points: Sequence[Point], console: Console) -> None:
    some = points
    if len(points) > _LINES:  # at equal steps, with the first and the last
        some = [points[round(i * (len(points) - 1) / (_LINES - 1))] for i in range(_LINES)]
    rows, before = [], 0
    for tokens, original, compressed in some:
        ratio = f"{compressed / original:.3f}" if original else "—"
        sizes = (str(original), str(compressed), ratio, str(compressed - before))
        rows.append(("—" if tokens is None else str(tokens), *sizes))
        before = compressed
    console.print(table(name, ("tokens", "bytes", "compressed", "ratio", "growth"), rows, left=()))
    if len(some) < len(points):
        console.plain(f"{len(some)} of {len(points):,} points; --json has them all")

"""When Guardian stops a loop, by the length of the block and of its tokens, and whether fresh text.

    python scripts/checks/check_guardian.py              # tables, about a minute
    python scripts/checks/check_guardian.py --quick      # fewer periods

A loop is a block of random tokens said over and over, after some other text. Guardian (f = 250,
t = 20) must stop it at most two checks after the block was first complete: within period + 2 f
tokens of the loop's beginning. One match of deflate spans at most 258 bytes and costs 3 to 4, so
loops of long tokens cost more than 20 bytes in 250 tokens however often they are repeated; blocks
beyond its window of 32 KiB are never seen. The table shows where, and what other codecs do:
`lzss_bits` looks back 512 bytes and counts matches of at most 32.

Fresh text is the reference manual that comes with Python, a document a topic, cut into tokens of
3.5 bytes on average. Exit code 1 if a loop of tokens up to 3.5 bytes is stopped late or not at all,
or fresh text is stopped.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pydoc_data.topics import topics

from rich.console import Console
from rich.table import Table

from lil import Guardian

LETTERS = b"abcdefghijklmnopqrstuvwxyz .,0123456789"
SHORT = (1.0, 2.0, 3.0, 3.5)
LONG = (4.0, 5.0, 6.0, 8.0)
PATIENCE = 6  # blocks after which a loop counts as not seen, or as many checks


def tokens(count: int, size: float, draw: random.Random) -> list[bytes]:
    """Random tokens of `size` bytes on average: the two whole lengths around it."""
    whole, part = int(size), size - int(size)
    return [bytes(draw.choices(LETTERS, k=whole + (draw.random() < part))) for _ in range(count)]


def stopped_after(period: int, size: float, seed: int, codec: str = "deflate") -> int | None:
    """Tokens from the beginning of a loop to the stop; None where it went on."""
    draw = random.Random(seed)
    before = tokens(draw.randrange(1000), size, draw)
    block = tokens(period, size, draw)
    guardian = Guardian(codec=codec)
    length = PATIENCE * max(period, guardian.f)
    verdict = guardian.watch(b"Say it again. ").update(
        before + (block * (length // period + 1))[:length]
    )
    if verdict is None:
        return None
    if verdict.token <= len(before):
        raise RuntimeError(f"stopped in {len(before)} random tokens, at {verdict.token}")
    return verdict.token - len(before)


def late(period: int, size: float, seed: int) -> str | None:
    """What is wrong with how a loop was stopped, if anything."""
    after, allowed = stopped_after(period, size, seed), period + 2 * Guardian().f
    if after is None:
        return f"period {period}, {size} bytes a token, seed {seed}: not stopped"
    if after > allowed:
        return f"period {period}, {size} bytes a token, seed {seed}: after {after} > {allowed}"
    return None


def periods(quick: bool) -> list[int]:
    """Every period up to 100, then 5% more each time, to 3,000."""
    found, p = [], 1.0
    while p < 3000:
        found.append(round(p))
        p = p * 1.6 if quick else p + 1 if p < 100 else p * 1.05
    return [*found, 3000]


def documents() -> Iterator[tuple[str, list[bytes]]]:
    """Name and tokens of texts in which nothing is said again for the sake of it."""
    draw = random.Random(0)
    sources = [(name, text) for name, text in sorted(topics.items()) if len(text) > 1500]
    for name, text in sources:
        # A long topic is several documents, so that the first checks of a text count too.
        raw = text.encode()
        for part, start in enumerate(range(0, len(raw), 5000)):
            piece, cut, at = raw[start : start + 5000], [], 0
            if len(piece) < 1500:
                continue
            while at < len(piece):
                size = draw.choice((3, 4))
                cut.append(piece[at : at + size])
                at += size
            yield f"{name} {part}", cut


def false_stops() -> tuple[int, list[str]]:
    """How many documents there are, and those Guardian stopped."""
    stopped, count = [], 0
    for name, pieces in documents():
        verdict = Guardian().watch(name.encode()).update(pieces)
        count += 1
        if verdict is not None:
            stopped.append(f"{name}: {dict(verdict.evidence)}")
    return count, stopped


def table(quick: bool) -> Table:
    """When loops of longer tokens are stopped, by codec."""
    shown = Table(
        title="tokens from the block's first completion to the stop; - not stopped", box=None
    )
    sizes = (3.5, *LONG)
    for column in ("codec", "period", *(f"{size} bytes" for size in sizes)):
        shown.add_column(column, justify="left" if column == "codec" else "right")
    for codec in ("deflate", "zstd", "lzss_bits"):
        few = quick or codec == "lzss_bits"  # which is slow
        for period in (1, 30, 300) if few else (1, 10, 30, 100, 300, 1000, 3000, 10_000):
            row = [stopped_after(period, size, 0, codec) for size in sizes]
            cells = ("-" if n is None else f"{n - period:,}" for n in row)
            shown.add_row(codec, f"{period:,}", *cells)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description="When Guardian stops, and when it must not.")
    parser.add_argument("--quick", action="store_true", help="fewer periods")
    quick = parser.parse_args().quick
    console = Console(width=None if sys.stdout.isatty() else 120)
    tried = [(p, size, seed) for seed, p in enumerate(periods(quick)) for size in SHORT]
    wrong = [found for case in tried if (found := late(*case))]
    console.print(f"{len(tried)} loops, period 1 to 3,000, tokens to 3.5 bytes: {len(wrong)} late")
    for line in wrong[:20]:
        console.print(line)
    console.print(table(quick))
    count, stopped = false_stops()
    console.print(f"{count} documents of fresh text: {len(stopped)} stopped")
    for line in stopped:
        console.print(line)
    return 1 if wrong or stopped else 0


if __name__ == "__main__":
    raise SystemExit(main())

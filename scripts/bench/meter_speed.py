"""Time of a Guardian check, fed incrementally and compressed from scratch.

python scripts/bench/meter_speed.py                   # at 10,000 to 1,000,000 tokens
python scripts/bench/meter_speed.py --tokens 131072 --f 1000
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from programs import Column, conditions, counts, measuring, one_message, parser, printed, table

from attention.errors import InvalidValue
from lil.compression.codecs.deflate import from_scratch
from lil.compression.meter import Meter

#: Of a row.
COLUMNS = (
    Column("tokens", "tokens", ","),
    Column("bytes", "original_bytes", ","),
    Column("compressed", "compressed_bytes", ","),
    Column("incremental ms", "incremental_ms", ".3f"),
    Column("from scratch ms", "from_scratch_ms", ".3f"),
    Column("times", "speedup", ".0f"),
)


def meter(tokens: int = 131_072, f: int = 250, repeats: int = 9, seed: int = 0) -> dict[str, Any]:
    """One Guardian check at `tokens` tokens: fed incrementally against compressed from scratch.

    The text is random lower-case letters, four bytes a token: it repeats little, which is the dear
    case for a compressor (the paper times random strings of 128k tokens at 34 ms). An incremental
    check feeds the last `f` tokens and reads the size; each repeat starts from the same state.
    Times are medians in milliseconds; both ways must give the same size.

    Raises:
        InvalidValue: `tokens` below `f`, or `f` or `repeats` below 1.
        RuntimeError: the two sizes differ.
    """
    if f < 1:
        raise InvalidValue("f", f, "at least 1")
    if tokens < f:
        raise InvalidValue("tokens", tokens, f"at least f = {f}")
    if repeats < 1:
        raise InvalidValue("repeats", repeats, "at least 1")
    rng = random.Random(seed)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=4 * tokens)).encode()
    cut = 4 * (tokens - f)
    running = Meter("deflate").feed(text[:cut])
    before = running.snapshot()

    def check() -> int:
        return running.feed(text[cut:]).size()

    incremental, whole = [], []
    check()  # warm-up
    for _ in range(repeats):
        running.rollback(before)
        seconds, size = _timed(check)
        incremental.append(seconds)
        seconds, expected = _timed(lambda: from_scratch(text))
        whole.append(seconds)
        if size != expected:
            raise RuntimeError(f"incremental {size} bytes, from scratch {expected}")
    return {
        "tokens": tokens,
        "f": f,
        "original_bytes": len(text),
        "compressed_bytes": size,
        "incremental_ms": 1e3 * statistics.median(incremental),
        "from_scratch_ms": 1e3 * statistics.median(whole),
        "speedup": statistics.median(whole) / statistics.median(incremental),
        "repeats": repeats,
        "seed": seed,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def _timed(work: Callable[[], int]) -> tuple[float, int]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    lengths = [10_000, 32_768, 131_072, 1_000_000]
    flags.add_argument("--tokens", type=counts, default=lengths, help="lengths of the text")
    flags.add_argument("--f", type=int, default=250, help="tokens between two checks (250)")
    flags.add_argument("--repeats", type=int, default=9, help="the median counts (9)")
    flags.add_argument("--seed", type=int, default=0, help="of the text (0)")
    args = flags.parse_args(argv)
    with measuring():
        rows = [meter(tokens, args.f, args.repeats, args.seed) for tokens in args.tokens]
    shown = table(f"one check, medians of {args.repeats}", COLUMNS, rows)
    apart = [column.field for column in COLUMNS]
    return printed({"rows": rows}, args.json, shown, conditions(rows[0], *apart))


if __name__ == "__main__":
    sys.exit(main())

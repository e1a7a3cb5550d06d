"""Time one Guardian check at 131,072 tokens: incremental against from scratch.

Usage: python scripts/bench_meter.py [--tokens 131072] [--f 250] [--repeats 9] [--seed 0] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys

from attention.errors import InvalidValue
from lil import bench


def main() -> int:
    """Print the median times and their conditions; the last line is JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=131_072, help="length of the sequence")
    parser.add_argument("--f", type=int, default=250, help="tokens since the last check")
    parser.add_argument("--repeats", type=int, default=9, help="checks timed; the median counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    try:
        result = bench.meter(args.tokens, args.f, args.repeats, args.seed)
    except InvalidValue as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(result))
        return 0
    print(
        f"one check at {result['tokens']:,} tokens ({result['original_bytes']:,} bytes of random "
        f"letters), {args.f} tokens after the last:\n"
        f"  incremental   {result['incremental_ms']:8.3f} ms\n"
        f"  from scratch  {result['from_scratch_ms']:8.3f} ms"
        f"  ({result['speedup']:.0f} times the incremental one)\n"
        f"median of {args.repeats}, seed {args.seed}, zlib {result['zlib']}, Python "
        f"{result['python']}, {result['machine']}, {result['cpus']} CPUs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Stores of sweeps as one small file each, and back again.

    python scripts/stores/packed_stores.py pack lil-out/real/table docs/results/traces/table.zst
    python scripts/stores/packed_stores.py unpack docs/results/traces/table.zst lil-out/real/table

A store compresses each run for itself, so that a killed sweep loses none; all runs together are a
tenth of that. What is unpacked is a store like any other: `lil report`, `lil replay` and `lil show`
read it, and a sweep goes on in it. Nothing in such a file is run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from attention.errors import InvalidValue
from experiments.store.store import Store

#: Names of a sweep's file and of a run.
SWEEP = re.compile(r"[0-9A-Za-z-]+\.json")
RUN = re.compile(r"[0-9a-f]{32}")
#: Bytes that all lines together may take at most.
LARGEST = 1 << 31


def lines(store: Path) -> Iterator[dict[str, Any]]:
    """What a store has: its sweeps, then its runs in the order of their names."""
    for path in sorted((store / "sweeps").glob("*.json")):
        yield {"sweep": path.name, "text": path.read_text()}
    with Store(store) as opened:
        for record in sorted(opened, key=lambda one: one.id):
            trace = None if record.failed else record.values()
            yield {"run": record.id, "meta": dict(record.meta), "trace": trace}


def pack(store: Path, file: Path) -> int:
    """Write it; how many runs it has.

    Raises:
        InvalidValue: the folder is no store.
    """
    if not (store / "sweeps").is_dir():
        raise InvalidValue("store", str(store), "the folder of a sweep")
    every = list(lines(store))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in every)
    file.parent.mkdir(parents=True, exist_ok=True)
    compressed = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text.encode())
    file.write_bytes(compressed)
    return sum("run" in line for line in every)


def unpack(file: Path, store: Path) -> int:
    """Write the store; how many runs it has.

    Raises:
        InvalidValue: there is something where it should be, or the file is none of these.
    """
    if store.exists():
        raise InvalidValue("store", str(store), "a folder that is not there yet")
    every = list(_read(file))
    (store / "sweeps").mkdir(parents=True)
    runs = 0
    with Store(store) as opened:
        for line in every:
            if "run" in line:
                opened.append(line["run"], line["meta"], line["trace"])
                runs += 1
            else:
                (store / "sweeps" / line["sweep"]).write_text(line["text"])
    return runs


def _read(file: Path) -> Iterator[dict[str, Any]]:
    allowed = "a file that `packed_stores.py pack` wrote"
    try:
        packed = file.read_bytes()
        if not 0 < zstandard.frame_content_size(packed) <= LARGEST:
            raise InvalidValue("file", str(file), allowed)
        # At once: read as a stream, a torn file is one that ends early.
        for line in zstandard.ZstdDecompressor().decompress(packed).decode().splitlines():
            found = json.loads(line)
            if set(found) == {"sweep", "text"}:
                good = bool(SWEEP.fullmatch(found["sweep"])) and isinstance(found["text"], str)
            else:
                good = set(found) == {"run", "meta", "trace"}
                good = good and bool(RUN.fullmatch(found["run"]))
            if not good:
                raise InvalidValue("file", str(file), allowed)
            yield found
    except (OSError, ValueError, TypeError, AttributeError, zstandard.ZstdError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue("file", str(file), allowed) from error


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 where one of the two paths cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args(argv)
    try:
        runs = (pack if args.what == "pack" else unpack)(args.source, args.target)
    except InvalidValue as error:
        print(f"packed_stores: {error}", file=sys.stderr)
        return 2
    print(f"{args.target}: {runs:,} runs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

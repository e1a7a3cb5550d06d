"""The command of a reading that has a row for each thing it counts in one store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.store.study import Study


def run(
    name: str,
    about: str,
    readings: Callable[[Study], Iterable[dict[str, Any]]],
    argv: Sequence[str] | None,
) -> int:
    """Print the rows of a store; 2 where it cannot be read so.

    Args:
        name: of the program.
        about: what it says of itself, its first line counts.
        readings: the rows.
        argv: words of the command line.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        rows = list(readings(Study.open(args.store)))
    except InvalidValue as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"rows": rows}))
        return 0
    for row in rows:
        print(row)
    return 0

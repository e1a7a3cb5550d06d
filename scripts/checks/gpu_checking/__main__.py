"""`scripts/gpu_check`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpu_checking.running import document, run_all, table
from gpu_checking.stages import stages


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description="Check and measure the project on a machine with a GPU, in subprocesses with "
        "time limits. Prints one JSON document, and a table on the error stream. Exit code 1 if a "
        "stage failed; one that could not be run is listed with the reason and fails nothing.",
    )
    parser.add_argument("--out", type=Path, help="a file for the JSON; the output by default")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all stages (30)")
    parser.add_argument("--quick", action="store_true", help="fewer oracle cases")
    parser.add_argument(
        "--only", action="append", default=[], help="this stage; may be given several times"
    )
    args = parser.parse_args()
    planned = stages(args.quick)
    if unknown := set(args.only) - {stage.name for stage in planned}:
        names = ", ".join(stage.name for stage in planned)
        parser.error(f"--only {unknown.pop()!r}: expected one of {names}")

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    outcomes = run_all(planned, args.minutes, args.only, told)
    found = document(outcomes)
    text = json.dumps(found, indent=1)
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text + "\n", encoding="utf-8")
    told(table(outcomes))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every number of the study's document a second time, from the stores' bytes, by other code.

    python scripts/measuring/study/study_readings.py STORE... --json > study.json
    python scripts/checks/recompute_study.py STORE... --document study.json

Nothing of the packages is imported, nor of what reads stores for the study: numpy, scipy, zlib and
zstandard alone. Problems are read out of prompts, texts by a grammar of the reasoner's language;
tokens of a line that the language does not have may be of any class. What is drawn (percentile
intervals, p of more exchanges than can be tried) may differ by what draws leave open, all else
must agree to nine digits, bounds by bootstrap-t as well. What follows from p and bounds (corrected
p, what may be said, break-even) is worked out from those that the document tells.

Prints each field, how many of its numbers were compared and the largest difference; exit code 1 on
a disagreement, each of which is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from recomputing_study.document import Comparison


def main(argv: list[str] | None = None) -> int:
    """The comparison; 0 if everything agrees, 2 where a store or the document cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stores", type=Path, nargs="+", help="folders that the study was read from")
    parser.add_argument("--document", type=Path, required=True, help="what was told of them")
    args = parser.parse_args(argv)
    try:
        comparison = Comparison(args.stores, json.loads(args.document.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"recompute_study: {error}", file=sys.stderr)
        return 2
    comparison.compare()
    return comparison.printed()


if __name__ == "__main__":
    raise SystemExit(main())

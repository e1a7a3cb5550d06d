"""Every number of a report's JSON a second time, from the store's bytes, by other code.

    lil report STORE --json --no-figures > report.json
    python scripts/checks/recompute_report.py STORE report.json

Nothing of the packages is imported: numpy, scipy, zlib and zstandard alone, after the definitions
that the documentation of a row gives, and math-verify for answers that are no numbers. `lil replay
--json` works as well. Bounds of percentile intervals, and p of more exchanges than can all be
tried, are drawn again with another seed and may differ by what the draws leave open; all else must
agree to nine digits, bounds by bootstrap-t as well, which take the report's own resamples. What may
be said of a row is worked out from the numbers that the report tells.

Prints each field, how many of its numbers were compared and the largest difference; exit code 1 on
a disagreement, each of which is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from recomputing.compare import Comparison


def main(argv: list[str] | None = None) -> int:
    """The comparison; 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("report", type=Path, help="what lil report --json printed for it")
    args = parser.parse_args(argv)
    report = json.loads(args.report.read_text(encoding="utf-8"))
    comparison = Comparison(args.store, report["manifest"].get("detectors"))
    comparison.compare(report["rows"], report.get("pooled"))
    comparison.compare_pooled(report["stopping"], report["rows"])
    return comparison.printed(f"{len(report['rows'])} rows, ")


if __name__ == "__main__":
    raise SystemExit(main())

"""Write what the study of the reasoner found into its pages, from what `study_readings.py` counted.

    python scripts/measuring/study/study_readings.py STORE... --json > study.json
    python scripts/pages/study/study_tables.py --chosen study.json --held-out held.json
    python scripts/pages/study/study_tables.py --without forget=other.json # of another recipe
    python scripts/pages/study/study_tables.py --why why.json              # of why_parted.py --json
    python scripts/pages/study/study_tables.py --policies again.json       # of check_policies.py
    python scripts/pages/study/study_tables.py --check    # exit code 1 if it differs

What is not given stays as it was kept; what belongs together is given in one call.

Numbers are kept in docs/study_results.json. docs/STUDY.md has sentences and the short tables,
docs/results/study.md the tables of every level, cap and cell. What is written stands between two
comments in its page, and no number of it is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import pages
import records
import study_advice
import study_sentences
from study_full_tables import FULL_TABLES
from study_short_tables import SHORT_TABLES
from study_words import CHOSEN, HELD_OUT, POLICIES, VARIANTS, WHY, Row

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "study_results.json"
PAGE, RESULTS = ROOT / "docs" / "STUDY.md", ROOT / "docs" / "results" / "study.md"
NAME = "study/study_tables.py"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = {CHOSEN: "--chosen", HELD_OUT: "--held-out", WHY: "--why", POLICIES: "--policies"}
    for name, flag in told.items():
        parser.add_argument(flag, dest=name, type=Path, help="a document, as above")
    parser.add_argument("--without", action="append", default=[], metavar="PART=FILE",
                        help="a document of a recipe without this part")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    kept = records.read(KEPT) if KEPT.exists() else {}
    for name in told:
        if (file := getattr(args, name)) is not None:
            kept[name] = json.loads(file.read_text())
    for one in args.without:
        part, equals, file = one.partition("=")
        if not equals:
            parser.error(f"--without {one}: expected PART=FILE")
        document = json.loads(Path(file).read_text())
        kept.setdefault(VARIANTS, {})[f"without {part}"] = printed(document)
    given = [*args.without, *(name for name in told if getattr(args, name) is not None)]
    if given and not args.check:
        records.write(KEPT, kept)
    for page in (PAGE, RESULTS):
        if not page.exists():
            parser.error(f"{page} is not there: it has the places for the tables")
    differ = [pages.put(PAGE, NAME, study_sentences.section(kept), args.check, "sentences")]
    differ.append(pages.put(PAGE, NAME, study_sentences.short(kept), args.check, "brief"))
    differ.append(pages.put(PAGE, NAME, study_advice.section(kept), args.check, "advice"))
    for page, tables in ((PAGE, SHORT_TABLES), (RESULTS, FULL_TABLES)):
        differ += [pages.put(page, NAME, make(kept), args.check, name)
                   for name, make in tables.items()]  # fmt: skip
    return max(differ)


def printed(document: Row) -> Row:
    """What the pages print of another recipe: every level at the largest cap."""
    cap = str(max(document["caps"]))
    levels = {
        level: {name: {cap: told[name][cap]} for name in ("full", "at")}
        for level, told in document["levels"].items()
    }
    return {"caps": [int(cap)], "levels": levels}


if __name__ == "__main__":
    sys.exit(main())

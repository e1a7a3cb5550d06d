"""Write what the study of the reasoner found into its pages, from what `study_readings.py` counted.

    python scripts/measuring/study/study_readings.py STORE... --json > study.json
    python scripts/pages/study/study_tables.py --take study.json            # chosen problems
    python scripts/pages/study/study_tables.py --take held.json --held-out  # shown beside them
    python scripts/pages/study/study_tables.py --take other.json --without forget
    python scripts/pages/study/study_tables.py --take why.json --why    # of why_parted.py --json
    python scripts/pages/study/study_tables.py --take again.json --policies  # check_policies.py
    python scripts/pages/study/study_tables.py --check    # exit code 1 if it differs

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
from study_words import CHOSEN, HELD_OUT, POLICIES, VARIANTS, WHY

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "study_results.json"
PAGE, RESULTS = ROOT / "docs" / "STUDY.md", ROOT / "docs" / "results" / "study.md"
NAME = "study/study_tables.py"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, help="a document of study_readings.py")
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--held-out", action="store_true", help="it is of the problems for last")
    of.add_argument("--without", help="it is of a recipe without this part")
    of.add_argument("--why", action="store_true", help="it is what why_parted.py says")
    of.add_argument("--policies", action="store_true", help="it is what check_policies.py says")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    kept = records.read(KEPT) if KEPT.exists() else {}
    if args.take is not None:
        document = json.loads(args.take.read_text())
        if args.without is not None:
            kept.setdefault(VARIANTS, {})[f"without {args.without}"] = document
        else:
            asked = {HELD_OUT: args.held_out, WHY: args.why, POLICIES: args.policies, CHOSEN: True}
            kept[next(name for name, wanted in asked.items() if wanted)] = document
        if not args.check:
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


if __name__ == "__main__":
    sys.exit(main())

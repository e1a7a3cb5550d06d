"""Write docs/results/real_models.md, and what the study says of it, from what was measured.

    python scripts/measuring/real/measure_real_models.py lil-out/real --gsm8k FILE  # all, then this
    python scripts/pages/real_models_tables.py --take lil-out/real              # this alone
    python scripts/pages/real_models_tables.py --traces docs/results/traces     # from stored texts
    python scripts/pages/real_models_tables.py --check     # print; exit code 1 if the page differs

Numbers are kept in docs/real_models_results.json; parts that are not there to take stay as they
are: of stored texts choppers, which need the model, and a first use. No number of the page is typed
by hand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pages
import records

ROOT = Path(__file__).parents[2]
sys.path[1:1] = [str(ROOT / "scripts" / "pages" / "real"), str(ROOT / "scripts/measuring/real")]

import penalty_tables  # noqa: E402
import salad_tables  # noqa: E402
import sparse_tables  # noqa: E402
from real_results import taken, unpacked  # noqa: E402
from wording import Row  # noqa: E402

KEPT = ROOT / "docs" / "real_models_results.json"
#: The study has what may be said, too.
STUDY, NAME = ROOT / "docs" / "STUDY.md", "real_models_tables.py"


def bullets(found: dict[str, Row]) -> str:
    """What may be said, each with its count."""
    return "".join(
        f"- {line}\n"
        for part in (sparse_tables, salad_tables, penalty_tables)
        for line in part.in_short(found)
    )


def short(found: dict[str, Row]) -> Iterator[str]:
    """The same under its heading."""
    if told := bullets(found):
        yield "## In short\n"
        yield told


#: Of the page, in order.
SECTIONS = (
    short, sparse_tables.full, sparse_tables.sparse, sparse_tables.primary, sparse_tables.paired,
    salad_tables.loops, salad_tables.chopper, salad_tables.recalibrated, penalty_tables.penalties,
    sparse_tables.cold,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, help="the folder that was measured into")
    parser.add_argument("--traces", type=Path, help="a folder of packed stores, instead")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    kept = records.read(KEPT) if KEPT.exists() else {}
    if args.take is not None:
        kept = taken(args.take, kept)
    if args.traces is not None:
        with tempfile.TemporaryDirectory() as folder:
            unpacked(args.traces, Path(folder))
            kept = taken(Path(folder), kept)
    if not args.check and (args.take is not None or args.traces is not None):
        records.write(KEPT, kept)
    section = "\n".join([line for part in SECTIONS for line in part(kept)])
    page = ROOT / "docs" / "results" / "real_models.md"
    if not page.exists():
        parser.error(f"{page} is not there: it has the place for the tables")
    differs = pages.put(page, NAME, section, args.check)
    if STUDY.exists():
        differs |= pages.put(STUDY, NAME, bullets(kept), args.check, "real models")
    return differs


if __name__ == "__main__":
    sys.exit(main())

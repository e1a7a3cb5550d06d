"""Write the reasoner's tables of docs/STUDY.md from what `study_readings.py` counted.

    python scripts/measuring/study/study_readings.py STORE... --json > study.json
    python scripts/pages/study_tables.py --take study.json            # chosen problems
    python scripts/pages/study_tables.py --take held.json --held-out  # shown beside them
    python scripts/pages/study_tables.py --check                      # exit code 1 if it differs

Numbers are kept in docs/study_results.json. A table stands between its two comments in the page,
and no number of it is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages
import records
from pages import chance, table

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "docs" / "study_results.json", ROOT / "docs" / "STUDY.md"
Row = Mapping[str, Any]


def number(found: Row | None, form: str = ".2f") -> str:
    """An estimate with its interval, where it has any."""
    if found is None or found["estimate"] is None:
        return "-"
    told = format(found["estimate"], form)
    if found["low"] is None and found["high"] is None:
        return told
    low, high = ("" if one is None else format(one, form) for one in (found["low"], found["high"]))
    return f"{told} [{low or '-inf'}, {high or 'inf'}]"


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.1f}"


def name_of(row: Row) -> str:
    """A method, its budget, and whether the prompt is kept."""
    if row.get("role") == "null":
        return "full attention again, with noise"
    kept = " with the prompt" if row.get("kept") else ""
    return f"{row['backend']} {row['budget']}{kept}"


def levels(found: Row) -> Iterator[tuple[str, str, str, Row]]:
    """Set of problems, level, cap and what was found at it."""
    for which, document in found.items():
        for level, told in document["levels"].items():
            for cap, at in told["at"].items():
                yield which, level, cap, at


def lengths(found: Row) -> str:
    """Questions 1 and 2: tokens until right, after it, and where both solve."""
    lines = []
    for which, level, cap, at in levels(found):
        for row in at["rows"]:
            one = row["against_full"]
            ratio = one["ratio_solved"]
            lines.append((
                which, level, cap, name_of(row), f"{row['solved']} of {row['n']}",
                number(one["until_right"], ".1f"), number(one["after_right"], ".1f"),
                f"{one['right_there_alone']} / {one['right_here_alone']} / {one['right_never']}",
                number(ratio, ".3f"), str(ratio["n"]), chance(ratio.get("p_holm", ratio["p"])),
                "-" if one["ratio_of_sums"] is None else f"{one['ratio_of_sums']:.3f}",
                row["said"] or "-",
            ))  # fmt: skip
    heads = (
        "problems", "level", "cap", "attention", "solved", "more tokens until right", "after it",
        "right: full alone / it alone / never", "tokens, both solve", "both", "p, Holm",
        "all tokens", "said",
    )  # fmt: skip
    return table(heads, lines, 4)


def selection(found: Row) -> str:
    """Question 2: a method less the oracle at its budget."""
    lines = [
        (which, level, cap, name_of(row), f"{row['lost']} / {row['gained']}",
         number(row["until_right"], ".1f"), number(row["after_right"], ".1f"),
         number(row["ratio_solved"], ".3f"))
        for which, level, cap, at in levels(found)
        for row in at["selection"]
    ]  # fmt: skip
    heads = ("problems", "level", "cap", "method, less the oracle", "lost / gained",
             "more tokens until right", "after it", "tokens, both solve")  # fmt: skip
    return table(heads, lines, 4)


def excess(found: Row) -> str:
    """Question 4: tokens beyond full attention's on the same problems, by class."""
    lines, heads = [], ["problems", "level", "cap", "attention", "more tokens"]
    for which, level, cap, at in levels(found):
        for row in at["rows"]:
            one = row["against_full"]["excess"]
            heads = [*heads[:5], *one["by_class"], "right to wrong", "wrong to right"]
            lines.append((which, level, cap, name_of(row), f"{one['tokens']:,}",
                          *(f"{x:,}" for x in one["by_class"].values()),
                          str(row["right_to_wrong"]), str(row["wrong_to_right"])))  # fmt: skip
    return table(heads, lines, 4)


def costs(found: Row) -> str:
    """Question 5: cost per solved problem over full attention's, and answers an hour."""
    lines, heads = [], ["problems", "level", "cap", "attention"]
    for which, level, cap, at in levels(found):
        for row in at["rows"]:
            told = row["against_full"]["per_solved_ratio"]
            heads = [*heads[:4], *(one.replace("_", " x ") for one in told), "right a CPU-hour"]
            rate = row["solved_per_cpu_hour"]
            lines.append((which, level, cap, name_of(row), *(number(x) for x in told.values()),
                          "-" if rate is None else f"{rate:,.0f}"))  # fmt: skip
    even = [
        (which, level, cap, one["backend"], one["cost"],
         *(", ".join(map(str, one[x])) or "-" for x in ("cheaper", "dearer", "open")))
        for which, level, cap, at in levels(found)
        for one in at["break_even"]
    ]  # fmt: skip
    where = table(("problems", "level", "cap", "method", "cost per solved", "less at", "more at",
                   "cannot be told at"), even, 5)  # fmt: skip
    return table(heads, lines, 4) + "\n" + where


def stopping(found: Row) -> str:
    """Question 6: who stopped at the first right value, and detectors beside it."""
    ceiling = [
        (which, level, cap, name_of(row), str(row["solved"]), str(row["first_is_right"]),
         str(row["last_is_right"]), str(row["ceiling_solved"]), share(row["ceiling_saved"]))
        for which, level, cap, at in levels(found)
        for row in at["rows"]
    ]  # fmt: skip
    watched = [
        (which, one["dataset"], f"`{one['detector']}`", one["action"],
         f"{one['false']} of {one['of_full']} (at most {share(one['false_high'])}%)",
         "yes" if one["same_bound"] else "no", f"{one['fired']} of {one['n']}",
         share(one["saved"]), str(one["lost"]), str(one["gained"]), str(one["right_before"]))
        for which, document in found.items()
        for one in document["detectors"]
    ]  # fmt: skip
    heads = ("problems", "level", "cap", "attention", "solved", "first value right",
             "last value right", "stop at the first right", "tokens it spares, %")  # fmt: skip
    seen = ("problems", "level", "detector", "then", "false stops", "within the bound", "fires in",
            "tokens spared, %", "lost", "gained", "right value stood there")  # fmt: skip
    return table(heads, ceiling, 4) + "\n" + table(seen, watched, 4)


TABLES: Mapping[str, Callable[[Row], str]] = {
    "reasoner lengths": lengths,
    "reasoner selection": selection,
    "reasoner excess": excess,
    "reasoner costs": costs,
    "reasoner stopping": stopping,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, help="a document of study_readings.py")
    parser.add_argument("--held-out", action="store_true", help="it is of the problems for last")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    kept = records.read(KEPT) if KEPT.exists() else {}
    if args.take is not None:
        kept["held out" if args.held_out else "chosen"] = json.loads(args.take.read_text())
        if not args.check:
            records.write(KEPT, kept)
    if not PAGE.exists():
        parser.error(f"{PAGE} is not there: it has the places for the tables")
    return max(
        pages.put(PAGE, "study_tables.py", make(kept), args.check, name)
        for name, make in TABLES.items()
    )


if __name__ == "__main__":
    sys.exit(main())

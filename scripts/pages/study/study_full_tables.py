"""Tables of every level, cap and cell of the study, for docs/results/study.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pages import chance, table
from study_words import Row, documents, name_of, number, percent


def levels(found: Row) -> Iterator[tuple[str, str, str, Row]]:
    """Set of problems, level, cap and what was found at it."""
    for which, document in documents(found).items():
        for level, told in document["levels"].items():
            for cap, at in told["at"].items():
                yield which, level, cap, at


def largest(found: Row) -> Iterator[tuple[str, str, str, Row]]:
    """The same at each document's largest cap alone."""
    for which, level, cap, at in levels(found):
        if int(cap) == max(found[which]["caps"]):
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
        for which, level, cap, at in largest(found)
        for row in at["selection"]
    ]  # fmt: skip
    heads = ("problems", "level", "cap", "method, less the oracle", "lost / gained",
             "more tokens until right", "after it", "tokens, both solve")  # fmt: skip
    return table(heads, lines, 4)


def excess(found: Row) -> str:
    """Question 4: tokens beyond full attention's on the same problems, by class."""
    lines, heads = [], ["problems", "level", "cap", "attention", "more tokens"]
    for which, level, cap, at in largest(found):
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
    for which, level, cap, at in largest(found):
        for row in at["rows"]:
            told = row["against_full"]["per_solved_ratio"]
            heads = [*heads[:4], *(one.replace("_", " x ") for one in told), "right a CPU-hour"]
            rate = row["solved_per_cpu_hour"]
            lines.append((which, level, cap, name_of(row), *(number(x) for x in told.values()),
                          "-" if rate is None else f"{rate:,.0f}"))  # fmt: skip
    even = [
        (which, level, cap, one["backend"], one["cost"],
         *(", ".join(map(str, one[x])) or "-" for x in ("cheaper", "dearer", "open")))
        for which, level, cap, at in largest(found)
        for one in at["break_even"]
    ]  # fmt: skip
    where = table(("problems", "level", "cap", "method", "cost per solved", "less at", "more at",
                   "cannot be told at"), even, 5)  # fmt: skip
    return table(heads, lines, 4) + "\n" + where


def stopping(found: Row) -> str:
    """Question 6: who stopped at the first right value, and detectors beside it."""
    ceiling = [
        (which, level, cap, name_of(row), str(row["solved"]), str(row["first_is_right"]),
         str(row["last_is_right"]), str(row["ceiling_solved"]), percent(row["ceiling_saved"]))
        for which, level, cap, at in largest(found)
        for row in at["rows"]
    ]  # fmt: skip
    watched = [
        (which, one["dataset"], f"`{one['detector']}`", one["action"],
         f"{one['false']} of {one['of_full']} (at most {100 * one['false_high']:.1f}%)",
         "yes" if one["same_bound"] else "no", f"{one['fired']} of {one['n']}",
         percent(one["saved"]), str(one["lost"]), str(one["gained"]), chance(one["p_holm"]),
         str(one["right_before"]))
        for which, document in documents(found).items()
        for one in document["detectors"]
    ]  # fmt: skip
    heads = ("problems", "level", "cap", "attention", "solved", "first value right",
             "last value right", "stop at the first right", "tokens it spares, %")  # fmt: skip
    seen = ("problems", "level", "detector", "then", "false stops", "within the bound", "fires in",
            "tokens spared, %", "lost", "gained", "p, Holm", "right value stood there")  # fmt: skip
    return table(heads, ceiling, 4) + "\n" + table(seen, watched, 4)


FULL_TABLES: Mapping[str, Callable[[Row], str]] = {
    "lengths": lengths,
    "selection": selection,
    "excess": excess,
    "costs": costs,
    "stopping": stopping,
}

"""Tables of docs/STUDY.md: the primary comparisons, and the rest by level, at the largest cap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pages import chance, table
from study_words import (
    ACTIONS,
    CHOSEN,
    HELD_OUT,
    POLICIES,
    VARIANTS,
    WHY,
    Row,
    cell_of,
    documents,
    name_of,
    number,
    percent,
)

#: The level of the primary comparisons.
LEVEL = "hard"
METHODS = ("quest", "infllm", "h2o", "sink")
#: Which rows of a control stand in which column.
COLUMNS = {
    "oracle": ("oracle", False), "random": ("random", False), "window": ("window", False),
    "h2o_uniform": ("h2o_uniform", False), "random, prompt kept": ("random", True),
    "h2o, prompt kept": ("h2o", True), "sink, prompt kept": ("sink", True),
}  # fmt: skip


def at_cap(found: Row, which: str, level: str, cap: int | None = None) -> Row | None:
    """What a document tells of a level at a cap, its largest by default; None where it does not."""
    document = found.get(which)
    if document is None or level not in document["levels"]:
        return None
    told: Row = document["levels"][level]["at"]
    return told.get(str(max(document["caps"]) if cap is None else cap))


def level_of(found: Row) -> str:
    """The level of the primary comparisons, or the only one there is."""
    levels = found[CHOSEN]["levels"]
    return LEVEL if LEVEL in levels else str(next(iter(levels)))


def is_primary(row: Row) -> bool:
    """Whether it is one of the methods' own cells."""
    return row["backend"] in METHODS and not row["kept"]


def primary(at: Row) -> Iterator[Row]:
    """Rows of the methods by name and budget, the null last."""
    mine = [row for row in at["rows"] if is_primary(row)]
    yield from sorted(mine, key=lambda one: (METHODS.index(one["backend"]), one["budget"]))
    yield from (row for row in at["rows"] if row["role"] == "null")


def twin(found: Row, which: str, row: Row, cap: int | None = None) -> Row | None:
    """The same cell among other problems, or at another cap."""
    at = at_cap(found, which, level_of(found), cap)
    rows = [] if at is None else at["rows"]
    return next((one for one in rows if cell_of(one) == cell_of(row)), None)


def _with_held_out(found: Row, told: Callable[[Row], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """A line for each primary row, and behind it the same cell among the problems held out."""
    at = at_cap(found, CHOSEN, level_of(found))
    assert at is not None
    for row in primary(at):
        yield name_of(row), *told(row)
        other = twin(found, HELD_OUT, row)
        if other is not None:
            yield "held out", *told(other)


def lengths(found: Row) -> str:
    """Question 1: answers, and tokens on all problems and where both solve, at the largest cap."""
    lines = [*_with_held_out(found, _told)]
    heads = ("attention", "solved", "lost / gained", "p, Holm", "all problems", "p, Holm",
             "both solve", "of", "p, Holm")  # fmt: skip
    return table(heads, lines)


def _told(row: Row) -> tuple[str, ...]:
    one = row["against_full"]
    everyone, both = one["ratio_all"], one["ratio_solved"]
    return (
        f"{row['solved']} of {one['n']}", f"{one['lost']} / {one['gained']}",
        chance(one.get("p_holm")), number(everyone), chance(everyone.get("p_holm")),
        number(both), str(both["n"]), chance(both.get("p_holm")),
    )  # fmt: skip


def until(found: Row) -> str:
    """Question 1: tokens until the answer is first right, and after it, on all problems."""
    lines = [*_with_held_out(found, _right)]
    heads = ("attention", "full attention alone", "it alone", "neither", "both", "more until",
             "p, Holm", "more after", "p, Holm")  # fmt: skip
    return table(heads, lines)


def _right(row: Row) -> tuple[str, ...]:
    one = row["against_full"]
    counts = ("right_there_alone", "right_here_alone", "right_never")
    told = (
        told
        for name in ("until_right", "after_right")
        for told in (number(one[name], ".0f"), chance(one[name].get("p_holm")))
    )
    return (*(str(one[name]) for name in counts), str(one["until_right"]["n"]), *told)


def selection(found: Row) -> str:
    """Question 2: a method less the oracle at its budget."""
    at, held = (at_cap(found, which, level_of(found)) for which in (CHOSEN, HELD_OUT))
    assert at is not None
    others = {cell_of(one): one for one in (held["selection"] if held else ())}
    order = sorted(at["selection"], key=lambda one: (METHODS.index(one["backend"]), one["budget"]))
    lines = []
    for row in order:
        lines.append((name_of(row), *_beside(row)))
        if cell_of(row) in others:
            lines.append(("held out", *_beside(others[cell_of(row)])))
    heads = ("method, less the oracle", "lost / gained", "p, Holm", "tokens, both solve", "p, Holm",
             "more until right", "more after it")  # fmt: skip
    return table(heads, lines)


def _beside(row: Row) -> tuple[str, ...]:
    ratio = row["ratio_solved"]
    return (
        f"{row['lost']} / {row['gained']}", chance(row.get("p_holm")),
        number(ratio), chance(ratio.get("p_holm")),
        number(row["until_right"], ".0f"), number(row["after_right"], ".0f"),
    )  # fmt: skip


def controls(found: Row) -> str:
    """Question 2: what other choices of keys solve at each budget, and tokens where both solve."""
    at = at_cap(found, CHOSEN, level_of(found))
    assert at is not None
    rows = {cell_of(row): row for row in at["rows"] if row["role"] != "null"}
    names = {name: (name, False) for name in METHODS} | COLUMNS
    names = {name: one for name, one in names.items()
             if any((cell[0], cell[2]) == one for cell in rows)}  # fmt: skip
    lines = []
    for budget in sorted({cell[1] for cell in rows if cell[1] is not None}):
        told = []
        for backend, kept in names.values():
            row = rows.get((backend, budget, kept))
            if row is None:
                told.append("")
                continue
            ratio = row["against_full"]["ratio_solved"]["estimate"]
            times = "-" if ratio is None else f"{ratio:.2f}"
            told.append(f"{100 * row['accuracy']['estimate']:.0f} / {times}")
        lines.append((str(budget), *told))
    return table(("budget", *names), lines)


def excess(found: Row) -> str:
    """Question 4: tokens beyond full attention's, all methods' cells of a level together."""
    lines, names = [], []
    for which, document in documents(found).items():
        for level in document["levels"]:
            at = at_cap(found, which, level)
            assert at is not None
            one = at["pooled"]
            names = [*one["shares"]]
            known = (one["longer"]["low"] or 0) > 0
            lines.append((
                which, level, f"{one['texts']:,}", number(one["longer"], ".0f"),
                *(percent(one["shares"][name]) if known else "-" for name in names),
            ))  # fmt: skip
    return table(("problems", "level", "texts", "more tokens a text", *names), lines, 2)


def costs(found: Row) -> str:
    """Question 5: cost per solved problem over full attention's, and answers an hour."""
    level = level_of(found)
    at = at_cap(found, CHOSEN, level)
    assert at is not None
    lines, names = [], ("keys", "byte_steps", "seconds", "eflops")
    for row in primary(at):
        told = row["against_full"]["per_solved_ratio"]
        rate = row["solved_per_cpu_hour"]
        lines.append((
            name_of(row), *(number(told[name]) for name in names),
            "-" if rate is None else f"{rate:,.0f}",
        ))  # fmt: skip
    full = found[CHOSEN]["levels"][level]["full"][str(max(found[CHOSEN]["caps"]))]
    rate = full["solved_per_cpu_hour"]
    lines.append(("full", *("1" for _ in names), "-" if rate is None else f"{rate:,.0f}"))
    heads = ["attention", *(one.replace("_", " x ") for one in names), "right a CPU-hour"]
    even = [
        (one["backend"], one["cost"].replace("_", " x "),
         *(", ".join(map(str, one[x])) or "-" for x in ("cheaper", "open", "dearer")))
        for one in at["break_even"]
        if one["cost"] in ("keys", "byte_steps")
    ]  # fmt: skip
    where = ("method", "cost per solved", "less at", "cannot be told at", "more at")
    return table(heads, lines) + "\n" + table(where, even, 5)


def stopping(found: Row) -> str:
    """Question 6: who knew the answer, by level; and detectors on the primary level."""
    ceiling = []
    for which, document in documents(found).items():
        for level, told in document["levels"].items():
            cap = str(max(document["caps"]))
            full, one = told["full"][cap], told["at"][cap]["pooled"]
            ceiling.append((
                which, level, "full", str(full["n"]), percent(full["accuracy"]),
                f"{100 * full['ever_right'] / full['n']:.1f}", percent(full["ceiling_saved"]),
            ))  # fmt: skip
            ceiling.append((
                which, level, "methods", f"{one['texts']:,}", percent(one["solved"]),
                percent(one["ever_right"]), percent(one["ceiling_saved"]),
            ))  # fmt: skip
    watched = [
        (which, f"`{one['detector']}`", one["action"],
         f"{one['false']} of {one['of_full']} (at most {100 * one['false_high']:.1f}%)",
         "yes" if one["same_bound"] else "no", f"{one['fired']} of {one['n']}",
         percent(one["saved"]), f"{one['lost']} / {one['gained']}", chance(one["p_holm"]),
         str(one["right_before"]))
        for which, document in documents(found).items()
        for one in sorted(document["detectors"], key=lambda one: ACTIONS.index(one["action"]))
        if one["dataset"] == level_of(found)
    ]  # fmt: skip
    heads = ("problems", "level", "attention", "texts", "solved, %", "right value ever stated, %",
             "tokens after it, %")  # fmt: skip
    seen = ("problems", "detector", "then", "false stops", "within the bound", "fires in",
            "tokens spared, %", "lost / gained", "p, Holm", "right value stood there")  # fmt: skip
    return table(heads, ceiling, 3) + "\n" + table(seen, watched, 3)


def penalised(found: Row) -> str:
    """Question 6: penalties beside the same texts without them."""
    lines = [
        (which, f"`{one['penalty']}`",
         f"{one['full']['lost']} / {one['full']['gained']} of {one['full']['n']}",
         "yes" if one["same_bound"] else "no", str(one["n"]), percent(one["saved"]),
         f"{one['lost']} / {one['gained']} of {one['solved']}", chance(one["p_holm"]),
         " / ".join(map(str, one["cut"])), " / ".join(map(str, one["loops"])))
        for which, document in documents(found).items()
        for one in document["penalties"]
        if one["dataset"] == level_of(found) and one["n"] and one["full"]["n"]
    ]  # fmt: skip
    if not lines:
        return "No penalty has been decoded yet.\n"
    heads = ("problems", "penalty", "full attention: lost / gained", "within the bound", "texts",
             "tokens spared, %", "lost / gained, of right ones", "p, Holm", "cut, with / without",
             "ending in a loop, with / without")  # fmt: skip
    return table(heads, lines, 2)


def arranged(found: Row) -> str:
    """Question 3: the same of recipes without one of their parts, at the largest cap."""
    if not found.get(VARIANTS):
        return "No other recipe has been decoded yet.\n"
    names = ("derived again", "checked again", "mended", "lost", "gave up", "loop")
    level, lines = level_of(found), []
    for name, document in ({"as it ships": found[CHOSEN]} | found.get(VARIANTS, {})).items():
        cap = str(max(document["caps"]))
        told = document["levels"][level]
        full, at = told["full"][cap], told["at"][cap]
        rows = [row for row in at["rows"] if is_primary(row)]
        known = (at["pooled"]["longer"]["low"] or 0) > 0
        lines.append((
            name, str(full["n"]), percent(full["accuracy"]),
            f"{full['tokens'] / full['n']:,.0f}",
            percent(at["pooled"]["solved"]), number(at["pooled"]["longer"], ".0f"),
            *(percent(at["pooled"]["shares"][one]) if known else "-" for one in names),
            f"{sum(row['ends'].get('gave up', 0) for row in rows):,} of "
            f"{sum(row['n'] for row in rows):,}",
        ))  # fmt: skip
    heads = ("recipe", "problems", "full attention solves, %", "its tokens", "methods solve, %",
             "more tokens a text", *(f"{x}, %" for x in names),
             "texts that give up")  # fmt: skip
    return table(heads, lines)


def why(found: Row) -> str:
    """Question 4: what putting keys back at the same budget does where a text parts."""
    told, lines, heads = found.get(WHY, {}), [], []
    if not told:
        return "It has not been run on these texts yet.\n"
    tried = sorted({key for one in told.values() for key in one["healed"]}, key=_keys)
    heads = ["method", "texts", "seconds each", *tried, "tokens alike then", "to the end",
             "missed weight in the prompt, %"]  # fmt: skip
    for name in sorted(told, key=_of_methods):
        one = told[name]
        healed = [one["healed"].get(key) for key in tried]
        seconds, inside, alike = one["seconds_each"], one["missed_in_prompt"], one["agreed"]
        lines.append((
            name, str(one["runs"] - one["refused"]), "-" if seconds is None else f"{seconds:.1f}",
            *("-" if x is None else f"{percent(x)} of {x['of']}" for x in healed),
            "-" if alike is None else f"{alike:g}",
            str(one["to_the_end"]) if one["healed"] else "-",
            "-" if inside is None else f"{100 * inside:.0f}",
        ))  # fmt: skip
    return table(heads, lines)


def policies(found: Row) -> str:
    """Question 2: stored texts that the naive oracles decode again, end to end."""
    told = found.get(POLICIES, {})
    if not told:
        return "An independent implementation has not decoded these texts yet.\n"
    names = ("texts", "equal", "tie", "parts", "tokens")
    whole = {name: sum(one[name] for one in told.values()) for name in names}
    of = {"full": 0} | {name: at + 1 for at, name in enumerate(METHODS)}
    ordered = sorted(told, key=lambda name: (of[name.split()[0]], int(name.split()[-1])
                                             if " " in name else 0))  # fmt: skip
    rows = [(name, told[name]) for name in ordered] + [("all", whole)]
    lines = [(name, *(f"{one[key]:,}" for key in names)) for name, one in rows]
    heads = ("attention", "texts", "equal to the last token", "part at a tie", "part otherwise",
             "tokens equal")  # fmt: skip
    return table(heads, lines)


def _of_methods(name: str) -> tuple[int, str]:
    order = (*METHODS, "methods")
    return (order.index(name) if name in order else len(order), name)


def _keys(name: str) -> tuple[bool, int]:
    return "drawn" in name, int(name.split()[0])


SHORT_TABLES: Mapping[str, Callable[[Row], str]] = {
    "lengths": lengths,
    "until": until,
    "selection": selection,
    "controls": controls,
    "policies": policies,
    "arranged": arranged,
    "excess": excess,
    "why": why,
    "costs": costs,
    "stopping": stopping,
    "penalties": penalised,
}

"""A level at a cap: every method's row, what may be said of it, selection and break-even."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recomputing_study import comparing
from recomputing_study.stores import COSTS, Cell, Level, Prices, read
from recomputing_study.texts import Text

METHODS = ("quest", "infllm", "h2o", "sink")
#: Outcomes whose chance is corrected together; the last is answers, of the comparison itself.
OUTCOMES = ("until_right", "after_right", "ratio_solved", "ratio_all", "")
LEVEL, LEAST, MOST_LOST = 0.05, 6, 0.01

Row = dict[str, Any]


def level(one: Level, caps: Sequence[int], prices: Prices, threads: float) -> dict[str, Any]:
    """All that is told of a level, but for what is drawn at random.

    Args:
        one: its runs.
        caps: as times full attention's length.
        prices: what costs are reckoned with.
        threads: of one worker, whose seconds a text's are.
    """
    found: dict[str, Any] = {"full": {}, "at": {}}
    for times in caps:
        texts = read(one, times, prices)
        full = next((some for cell, some in texts.items() if cell.is_full), {})
        whole = {problem: text for problem, text in full.items() if not text.cut}
        found["full"][str(times)] = comparing.alone(list(full.values()), threads) | {
            "ended_at_first": comparing.ended_at_first(list(full.values()))
        }
        found["at"][str(times)] = _at(one, texts, whole, times, threads)
        found["censored"] = len(full) - len(whole)
    return found


def is_method(cell: Cell) -> bool:
    """Whether it is one of the methods as they are, without the prompt kept."""
    return cell.backend in METHODS and not cell.kept


def _at(
    one: Level,
    texts: Mapping[Cell, Mapping[str, Text]],
    whole: Mapping[str, Text],
    times: int,
    threads: float,
) -> dict[str, Any]:
    rows: dict[Cell, Row] = {}
    for cell, some in texts.items():
        if cell.is_full:
            continue
        row: Row = {"backend": cell.backend, "budget": cell.budget, "kept": cell.kept}
        row["role"] = one.roles[cell]
        row |= comparing.alone(list(some.values()), threads)
        row["solved"] = sum(text.solved for text in some.values())
        row["against_full"] = comparing.beside(some, whole, times)
        rows[cell] = row
    methods = [
        (text, whole[problem])
        for cell, some in texts.items()
        if is_method(cell)
        for problem, text in some.items()
        if problem in whole
    ]
    return {
        "rows": list(rows.values()),
        "pooled": comparing.pooled(methods) | {"cells": sum(is_method(cell) for cell in texts)},
        "selection": _beside(texts, _oracles(texts), whole, times),
        "random": _beside(texts, _drawn(texts), whole, times),
        "window": _beside(texts, _newest(texts), whole, times),
        "budgets": _beside(texts, _smaller(texts), whole, times),
        "prompt": _beside(texts, _forgetful(texts), whole, times),
    }


def _oracles(cells: Iterable[Cell]) -> dict[Cell, Cell]:
    """The oracle with as many tokens, for each method."""
    return {cell: Cell("oracle", cell.budget, False) for cell in cells if is_method(cell)}


def _drawn(cells: Iterable[Cell]) -> dict[Cell, Cell]:
    """As many tokens drawn at random, for each method."""
    return {cell: Cell("random", cell.budget, False) for cell in cells if is_method(cell)}


def _newest(cells: Iterable[Cell]) -> dict[Cell, Cell]:
    """The newest tokens alone, for those that keep the first ones as well."""
    return {
        cell: Cell("window", cell.budget, False)
        for cell in cells
        if is_method(cell) and cell.backend == "sink"
    }


def _smaller(cells: Iterable[Cell]) -> dict[Cell, Cell]:
    """Each method with the largest of its budgets that are smaller."""
    mine = [cell for cell in cells if is_method(cell)]
    found: dict[Cell, Cell] = {}
    for cell in mine:
        less = [x for x in mine if x.backend == cell.backend and x.budget < cell.budget]
        if less:
            found[cell] = max(less, key=lambda x: x.budget)
    return found


def _forgetful(cells: Iterable[Cell]) -> dict[Cell, Cell]:
    """The same without the prompt kept, for each method that keeps it."""
    return {cell: cell._replace(kept=False) for cell in cells if cell.kept}


def _beside(
    texts: Mapping[Cell, Mapping[str, Text]],
    others: Mapping[Cell, Cell],
    whole: Mapping[str, Text],
    times: int,
) -> list[Row]:
    found = []
    for cell, other in others.items():
        if other in texts:
            its = {x: text for x, text in texts[other].items() if x in whole}
            compared = comparing.beside(texts[cell], its, times)
            found.append({"backend": cell.backend, "budget": cell.budget, **compared})
    return found


# ---------------------------------------------------------------- from the document's own numbers
#
# Where p or bounds are drawn, what follows from them follows from those that the document tells.


def holm(compared: Sequence[Row], families: Sequence[object]) -> dict[tuple[int, str], float]:
    """The corrected p of each comparison and outcome.

    Args:
        compared: as the document tells them.
        families: of each, within which p are corrected; None for none.
    """
    return {
        (at, outcome): p
        for outcome in OUTCOMES
        for at, p in holm_of(
            [(one[outcome] if outcome else one)["p"] for one in compared], families
        ).items()
    }


def holm_of(told: Sequence[float | None], families: Sequence[object]) -> dict[int, float]:
    """The corrected p by place, of those that there are.

    Args:
        told: as the document tells them.
        families: of each, within which p are corrected; None for none.
    """
    found: dict[int, float] = {}
    for family in {one for one in families if one is not None}:
        some = [
            (p, at)
            for at, (p, its) in enumerate(zip(told, families, strict=True))
            if its == family and p is not None
        ]
        largest = 0.0
        for rank, (p, at) in enumerate(sorted(some)):
            largest = max(largest, min(1.0, p * (len(some) - rank)))
            found[at] = largest
    return found


def family(row: Row) -> str | None:
    """With which others a row's p are corrected."""
    if row["role"] == "null":
        return None
    methods = is_method(Cell(row["backend"], row["budget"], row["kept"]))
    return "methods" if methods else "others"


def said(row: Row, null: Mapping[str, Any] | None) -> str | None:
    """What may be said of a row's length where both solve.

    Args:
        row: as the document tells it.
        null: the same ratio of full attention beside itself.
    """
    ratio = row["against_full"]["ratio_solved"]
    if ratio["within"]:
        return "within 5%"
    low, high = ratio["low"], ratio["high"]
    chance = ratio.get("p_holm", ratio["p"])  # one that stands alone needs no correction
    if ratio["differs"] < LEAST or chance is None or chance > LEVEL or low is high is None:
        return None
    floor, ceiling = 0.0 if low is None else low, float("inf") if high is None else high
    if null is not None and null["estimate"] is not None:
        its_floor, its_ceiling = null["low"], null["high"]
        if its_floor is its_ceiling is None:
            its_floor = its_ceiling = null["estimate"]
        if floor <= (its_ceiling or float("inf")) and (its_floor or 0.0) <= ceiling:
            return None
    return "longer" if floor > 1 else "shorter" if ceiling < 1 else None


def sparsity_free(rows: Sequence[Row]) -> list[int]:
    """Budgets at which an oracle costs nothing, in answers and in length."""
    return sorted(
        row["budget"]
        for row in rows
        if row["backend"] == "oracle"
        and not row["kept"]
        and row["against_full"]["ratio_solved"]["within"]
        and row["against_full"]["solved_other"]
        and comparing.upper(row["against_full"]["lost"], row["against_full"]["solved_other"])
        <= MOST_LOST
    )


def break_even(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[int]]]:
    """By method and cost: budgets at which a solved problem costs less, more, or who knows."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for row in rows:
        if not is_method(Cell(row["backend"], row["budget"], row["kept"])):
            continue
        for cost in COSTS:
            ratio = row["against_full"]["per_solved_ratio"][cost]
            kind = "open"
            if not row["against_full"]["solved"] or (ratio["low"] or 0) > 1:
                kind = "dearer"
            elif ratio["high"] is not None and ratio["high"] < 1:
                kind = "cheaper"
            kinds = found.setdefault(
                (row["backend"], cost), {"cheaper": [], "dearer": [], "open": []}
            )
            kinds[kind] = sorted([*kinds[kind], row["budget"]])
    return found

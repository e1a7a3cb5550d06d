"""What the tables of docs/results/actions.md say, by rule: what loses little, what is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.statistics import LEAST, LEVEL, holm, tango

Row = dict[str, Any]

#: Answers, as a share of the traces that differ from full attention's, that must not be lost.
LOSS = 0.01
#: A loss of accuracy against full attention that must be ruled out before it is called kept.
MARGIN = 0.05
#: Shares of L and of T that are wanted, by the cap in multiples of full attention's mean length.
AIMS: Mapping[int, float] = {2: 0.90, 4: 0.95}
#: Guardian's settings that have a name.
GUARDIANS: Mapping[str, str] = {
    "guardian(f=250, rate=0.08)": "the paper's",
    "guardian(f=100, rate=0.08)": "the demo's",
}


def is_safe(row: Row) -> bool:
    """Whether a net loss of `LOSS` is ruled out, and no configuration loses beyond chance.

    Only traces that differ from full attention's count: any loss gets small among enough traces in
    which there is nothing to lose. Problems resampled take into account that traces of one problem
    are alike, but say nothing where hardly an answer moves; Tango's interval over traces is the
    other way round. Both must rule it out.
    """
    lost, gained = (sum(level[what] for level in row["levels"]) for what in ("lost", "gained"))
    low, alone = row["net_differing"]["low"], tango(lost, gained, row["differing"]).low
    if low is None or alone is None:
        return False
    return min(low, alone) > -LOSS and not row["losing"]


def seen_from(cells: int) -> int:
    """Problems that one of so many configurations must lose, gaining none, to be said to lose."""
    lost = 1
    while cells * 2 * 0.5**lost > 1 - LEVEL:  # an exact test of two sides, after Holm's correction
        lost += 1
    return lost


def best(rows: Sequence[Row]) -> Row | None:
    """Of the safe ones, the one that spares most of L and T together."""
    safe = [row for row in rows if is_safe(row) and None not in (_l(row), _t(row))]
    return max(safe, key=lambda row: _l(row) + _t(row), default=None)


#: Of the table of `reading`: a column each.
HEADS = (
    "cap", "sampling", "safe", "a loss is seen from", "of the safe ones, it spares most", "aims",
    *(f"Guardian, {name}, then stop" for name in GUARDIANS.values()),
)  # fmt: skip


def definition() -> str:
    """What the table calls safe, and how the best is picked."""
    return (
        f"A detector with its action is safe where a net loss of {100 * LOSS:g}% of the outputs "
        "that differ from full attention's is ruled "
        "out by both 95% intervals, problems resampled and Tango's over outputs, and no "
        "configuration loses answers beyond chance. Such a loss can be seen where one "
        "configuration loses at least the given number of problems and gains none. What spares "
        "most has the largest sum of both shares, picked on these traces and not tested against "
        "the next."
    )


def reading(what: str, cap: int, rows: Sequence[Row]) -> list[str]:
    """A row of the table, for one sweep.

    Args:
        what: how it was sampled.
        cap: in multiples of full attention's mean length.
        rows: pooled, one for each detector and action.
    """
    safe = [row for row in rows if is_safe(row)]
    found = best(rows)
    stops = {row["detector"]: row for row in rows if row["action"] == "stop"}
    return [
        str(cap),
        what,
        f"{len(safe)} of {len(rows)}",
        f"{seen_from(rows[0]['cells'])} problems",
        "none"
        if found is None
        else f"`{found['detector']}`, then {found['action']}: {_spares(found)}",
        "-" if found is None else _aims(cap, found),
        *(_guardian(stops.get(name)) for name in GUARDIANS),
    ]


def _guardian(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{_spares(row)}; {'safe' if is_safe(row) else 'not safe'}"


def kept_readings(found: Row) -> list[str]:
    """Sentences on prompts kept and dropped, what `kept_prompts.py` found."""
    rows = found["rows"]
    corrected = holm([row["p"] for row in rows])
    beyond = [row for row, p in zip(rows, corrected, strict=True) if p <= 1 - LEVEL]
    better = [row for row in beyond if row["change"]["estimate"] > 0]
    worse = [row for row in beyond if row["change"]["estimate"] < 0]
    clear = [row for row in rows if row["longer_kept"]["both"] >= LEAST]
    longer = [row for row in clear if _above(row["longer_kept"]["longer"], 1)]
    both = [row for row in longer if _keeps(row["against_full"])]
    lines = [
        f"- Keeping the prompt solves more in {_of(better, rows)}, and less in {_of(worse, rows)}: "
        f"exact tests, {100 * LEVEL:g}% after Holm's correction.",
        f"- Prompts kept, outputs are longer where both solve, {LEAST} problems or more, in "
        f"{_of(longer, rows)}: 95% intervals above 1, uncorrected; with a loss of "
        f"{100 * MARGIN:g} points of accuracy ruled out, too, in {_of(both, rows)}.",
    ]
    for row in found["random"]:
        if row["p"] <= 1 - LEVEL and row["change"]["estimate"] < 0:
            said = "solves less than"
        elif _keeps(row):
            said = f"is as good, to within {100 * MARGIN:g} points, as"
        else:
            said = "is not distinguished from"
        lines.append(
            f"- At {row['budget']} tokens `random` with the prompt kept {said} "
            f"`{row['strongest']}`, which solves most beside it, picked on the same traces."
        )
    return lines


def _above(found: Row, bound: float) -> bool:
    return found["low"] is not None and found["low"] > bound


def _keeps(row: Row) -> bool:
    """Whether a loss of `MARGIN` is ruled out, by Tango's interval: right with few that differ."""
    low = tango(row["lost"], row["gained"], row["problems"]).low
    return low is not None and low > -MARGIN


def _of(rows: Sequence[Row], among: Sequence[Row]) -> str:
    told = ", ".join(f"{row['method']} {row['budget']}" for row in rows)
    return f"{len(rows)} of {len(among)}" + (f" ({told})" if told else "")


def _aims(cap: int, row: Row) -> str:
    """An aim is reached or missed where the whole interval says so."""
    if cap not in AIMS:
        return "-"
    wanted = AIMS[cap]
    said = []
    for name, found in (("L", row["loops"]), ("T", row["tails"])):
        if found["low"] is not None and found["low"] >= wanted:
            verdict = "reached"
        elif found["high"] is not None and found["high"] < wanted:
            verdict = "missed"
        else:
            verdict = "neither reached nor missed for certain"
        said.append(f"{100 * wanted:g}% of {name}: {verdict}")
    return ", ".join(said)


def _spares(row: Row) -> str:
    shares = ", ".join(
        f"{name} {_share(row[key])}" for name, key in (("L", "loops"), ("T", "tails"))
    )
    lost, solved, gained = (
        sum(level[what] for level in row["levels"]) for what in ("lost", "solved", "gained")
    )
    return f"{shares}; {lost} lost of {solved:,}, {gained} gained"


def _share(found: Row) -> str:
    if found["estimate"] is None:
        return "-"
    return f"{100 * found['estimate']:.0f}% [{100 * found['low']:.0f}, {100 * found['high']:.0f}]"


def _l(row: Row) -> Any:
    return row["loops"]["estimate"]


def _t(row: Row) -> Any:
    return row["tails"]["estimate"]

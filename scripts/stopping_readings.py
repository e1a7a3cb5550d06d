"""What the tables of docs/actions.md say, by rule: which detectors lose little, which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]

#: Answers, as a share of traces, that a detector must be shown not to cost.
LOSS = 0.005
#: A loss of accuracy against full attention that must be ruled out before it is called kept.
MARGIN = 0.05
#: Shares of L and of T that are wanted, by the cap in multiples of full attention's mean length.
AIMS: Mapping[int, float] = {2: 0.90, 4: 0.95}


def is_safe(row: Row) -> bool:
    """Whether a loss of `LOSS` is ruled out over all, and no configuration loses beyond chance."""
    low = row["net"]["low"]
    return low is not None and low > -LOSS and not row["losing"]


def best(rows: Sequence[Row]) -> Row | None:
    """Of the safe ones, the one that spares most of L and T together."""
    safe = [row for row in rows if is_safe(row) and None not in (_l(row), _t(row))]
    return max(safe, key=lambda row: _l(row) + _t(row), default=None)


def readings(what: str, cap: int, rows: Sequence[Row]) -> list[str]:
    """Sentences on one sweep.

    Args:
        what: how it was sampled.
        cap: in multiples of full attention's mean length.
        rows: pooled, one for each detector and action.
    """
    safe = [row for row in rows if is_safe(row)]
    lines = [
        f"- Cap {cap}, {what}: {len(safe)} of {len(rows)} detectors and actions are safe: a net "
        f"loss of {100 * LOSS:g} points is ruled out, and no configuration loses beyond chance."
    ]
    found = best(rows)
    if found is None:
        lines.append("  None is called best.")
    else:
        lines.append(
            f"  Of these, {_told(found)} spares most, picked on these traces.{_aim(cap, found)}"
        )
    papers = [
        row for row in rows if row["detector"].startswith("guardian") and row["action"] == "stop"
    ]
    lines += [
        f"  Guardian, the paper's: {_told(row)}{'' if is_safe(row) else ', and is not safe'}."
        for row in papers
    ]
    return lines


def kept_readings(found: Row) -> list[str]:
    """Sentences on prompts kept and dropped, what `kept_prompts.py` found."""
    rows = found["rows"]
    better = [row for row in rows if _above(row["change"], 0)]
    worse = [row for row in rows if _below(row["change"], 0)]
    longer = [row for row in rows if _above(row["longer_kept"]["longer"], 1)]
    both = [row for row in longer if _above(row["against_full"]["change"], -MARGIN)]
    lines = [
        f"- Keeping the prompt solves more in {_of(better, rows)}, and less in {_of(worse, rows)}.",
        f"- Prompts kept, outputs are longer where both solve in {_of(longer, rows)}; with a loss "
        f"of {100 * MARGIN:g} points of accuracy ruled out, too, in {_of(both, rows)}.",
    ]
    for row in found["random"]:
        if _below(row["change"], 0):
            said = "solves less than"
        elif _above(row["change"], -MARGIN):
            said = f"is as good, to within {100 * MARGIN:g} points, as"
        else:
            said = "is not told apart from"
        lines.append(
            f"- At {row['budget']} tokens `random` with the prompt kept {said} "
            f"`{row['strongest']}`, which solves most beside it, picked on the same traces."
        )
    return lines


def _above(found: Row, bound: float) -> bool:
    return found["low"] is not None and found["low"] > bound


def _below(found: Row, bound: float) -> bool:
    return found["high"] is not None and found["high"] < bound


def _of(rows: Sequence[Row], among: Sequence[Row]) -> str:
    told = ", ".join(f"{row['method']} {row['budget']}" for row in rows)
    return f"{len(rows)} of {len(among)}" + (f" ({told})" if told else "")


def _aim(cap: int, row: Row) -> str:
    if cap not in AIMS:
        return ""
    missed = [name for name, share in (("L", _l(row)), ("T", _t(row))) if share < AIMS[cap]]
    wanted = f"{100 * AIMS[cap]:g}%"
    return f" {wanted} of {' and of '.join(missed)} is missed." if missed else f" {wanted} reached."


def _told(row: Row) -> str:
    shares = ", ".join(
        f"{name} {_share(row[key])}" for name, key in (("L", "loops"), ("T", "tails"))
    )
    return (
        f"`{row['detector']}`, then {row['action']} ({shares}; {row['lost']} lost and "
        f"{row['gained']} gained of {row['samples']:,})"
    )


def _share(found: Row) -> str:
    if found["estimate"] is None:
        return "-"
    return f"{100 * found['estimate']:.0f}% [{100 * found['low']:.0f}, {100 * found['high']:.0f}]"


def _l(row: Row) -> Any:
    return row["loops"]["estimate"]


def _t(row: Row) -> Any:
    return row["tails"]["estimate"]

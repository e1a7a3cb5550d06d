"""How numbers and cells of the study are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
#: What follows a detector's verdict, in the order in which it is told.
ACTIONS = ("stop", "answer", "regenerate", "densify")
#: Which problems a document is of.
CHOSEN, HELD_OUT = "chosen", "held out"
#: Where documents of other recipes stand, by the part that they do without; what heals; and what
#: the oracles decode again.
VARIANTS, WHY, POLICIES = "variants", "why", "policies"


def documents(found: Row) -> dict[str, Row]:
    """Those of the shipped model, by which problems they are of."""
    return {name: found[name] for name in (CHOSEN, HELD_OUT) if name in found}


def number(found: Row | None, form: str = ".2f") -> str:
    """An estimate with its interval, where it has any."""
    if found is None or found["estimate"] is None:
        return "-"
    told = format(found["estimate"], form)
    if float(told) == 0:
        told = format(0.0, form)  # no minus
    if found["low"] is None and found["high"] is None:
        return told
    low, high = ("" if one is None else format(one, form) for one in (found["low"], found["high"]))
    return f"{told} [{low or '-inf'}, {high or 'inf'}]"


def name_of(row: Row) -> str:
    """A method, its budget, and whether the prompt is kept."""
    if row.get("role") == "null":
        return "the noise control"
    kept = " with the prompt" if row.get("kept") else ""
    return f"{row['backend']} {row['budget']}{kept}"


def percent(found: Row) -> str:
    """A share with its interval, in percent."""
    if found["estimate"] is None:
        return "-"
    told = f"{100 * found['estimate']:.1f}"
    if found["low"] is None or found["high"] is None:
        return told
    return f"{told} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def cell_of(row: Row) -> tuple[str, int | None, bool]:
    """By what a row is found again in another document."""
    return row["backend"], row["budget"], bool(row.get("kept"))

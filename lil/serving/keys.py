"""The names of the values that a request may bring, and those that are nearly one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from attention.errors import InvalidValue
from lil.penalties import DRYPenalty, LZPenalty, Penalty, PresenceWindowPenalty

#: Penalties that requests may ask for.
PENALTIES: tuple[type[Penalty], ...] = (LZPenalty, DRYPenalty, PresenceWindowPenalty)

#: What ends a request, and what `answer` gives the model.
STOPPING = ("stop_on", "stop_on_tokens", "stop_on_token", "stop_on_label")
CUE = "stop_on_cue"

#: Letters from which on a name that is one letter off is taken for a slip.
_LONG = 6


@cache
def penalty_keys(kind: type[Penalty]) -> Mapping[str, str]:
    """Its parameters' names by the names that a request gives them."""
    # Padding never reaches a processor in an engine.
    names = (one.name for one in fields(kind) if one.init and one.name != "pad_token_id")
    return {f"{kind.name}_{name}": name for name in names}


@cache
def request_keys() -> tuple[str, ...]:
    """All names that mean something here."""
    own = ((kind.name, *penalty_keys(kind)) for kind in PENALTIES)
    return (*(name for names in own for name in names), *STOPPING, CUE)


def require_spelled(given: Iterable[str], names: Sequence[str] | None = None) -> None:
    """Refuse what is one of our names but for its case, its dashes or one letter.

    Values that belong to others' processors come in the same table, so a name is refused only where
    nothing else can have been meant.

    Args:
        given: names of all extra values of a request.
        names: those that mean something; None for those of penalties and detectors.

    Raises:
        InvalidValue: such a name.
    """
    ours = request_keys() if names is None else names
    for key in given:
        if key in ours:
            continue
        said = _plain(key)
        for name in ours:
            meant = _plain(name)
            if said == meant or (len(meant) >= _LONG and _one_off(said, meant)):
                allowed = f"{name}: another spelling of it would not be read"
                raise InvalidValue("value", key, allowed, [name])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _one_off(said: str, meant: str) -> bool:
    """Whether a letter too many, too few, another one, or two that changed places part them."""
    if abs(len(said) - len(meant)) > 1:
        return False
    same = next((i for i, (a, b) in enumerate(zip(said, meant, strict=False)) if a != b), None)
    if same is None:
        return True
    one, two = said[same:], meant[same:]
    swapped = one[:2] == two[1::-1] and one[2:] == two[2:]
    return swapped or one[1:] == two[1:] or one[1:] == two or one == two[1:]


def require_known(given: Mapping[str, Any], more: Sequence[str]) -> None:
    """Refuse values that nobody reads, in what a server is started with.

    Args:
        given: the values.
        more: names that belong to no penalty.

    Raises:
        InvalidValue: one that is not among them.
    """
    names = [*more]
    for kind in PENALTIES:
        names += [kind.name, *penalty_keys(kind)]
    for key in given:
        if key not in names:
            raise InvalidValue("value", key, f"one of {', '.join(names)}", names)

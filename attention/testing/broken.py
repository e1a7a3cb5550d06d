"""How checks are run, and how one says what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from torch import Tensor

from attention.errors import InvalidValue
from attention.registry import parameters

T = TypeVar("T")

# All is computed in float64; where transformers rounds its norms to float32, far below this.
TOLERANCE = 1e-6


class ContractBroken(AssertionError):  # noqa: N818
    """A class does not keep its contract: which class, which check, what was found.

    Args:
        method: name of the backend, or of what else is checked.
        check: a name of `CHECKS`.
        found: what was found, and where to look.
    """

    def __init__(self, method: str, check: str, found: str) -> None:
        self.method, self.check, self.found = method, check, found
        super().__init__(f"{method} fails the check {check!r}: {found}")


class Breach(Exception):  # noqa: N818
    """What was found, before it is known in which check."""


def require(holds: bool, found: str) -> None:
    """Raise Breach unless a condition holds."""
    if not holds:
        raise Breach(found)


def require_aliases(kind: type) -> None:
    """Raise Breach unless the groups of a class's `aliases` are names of its parameters."""
    aliases, known = getattr(kind, "aliases", ()), [one.name for one in parameters(kind)]
    form = "groups of names, as (('rate', 't'),)"
    require(isinstance(aliases, tuple | list), f"aliases = {aliases!r}: expected {form}")
    for group in aliases:
        right = isinstance(group, tuple | list) and len(group) > 1
        require(
            right, f"aliases = {aliases!r}: expected {form}; {group!r} is no group of two or more"
        )
        for name in group:
            found = f"aliases = {aliases!r}: {name!r} is no parameter; there are {', '.join(known)}"
            require(name in known, found)


def same(got: Tensor, want: Tensor, found: str) -> None:
    """Raise Breach where logits (n, V) differ.

    Args:
        found: what to say; `{at}` becomes the first place, `{by}` how far apart they are.
    """
    apart = (got - want).abs().amax(-1)
    wrong = (~(apart <= TOLERANCE)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise Breach(found.format(at=at, by=f"{float(apart[at]):.2g}"))


def run(
    name: str, checks: Mapping[str, Callable[[T], str]], case: T, skip: Iterable[str] = ()
) -> dict[str, str]:
    """What each check found in a case, by the check's name.

    Args:
        name: of what is checked.
        skip: names of checks to leave out.

    Raises:
        ContractBroken: with what was found.
        InvalidValue: `skip` names no check.
    """
    left = set(skip)
    for one in left - set(checks):
        raise InvalidValue("skip", one, "names among " + ", ".join(checks), list(checks))
    found = {}
    for one, holds in checks.items():
        if one in left:
            continue
        try:
            found[one] = holds(case)
        except Breach as broken:
            raise ContractBroken(name, one, str(broken)) from None
        except Exception as error:  # whatever it does wrong, the check is named
            raise ContractBroken(name, one, f"{type(error).__name__}: {error}") from error
    return found

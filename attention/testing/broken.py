"""How checks are run, and how a check reports what is wrong."""

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
    """A class does not keep its contract."""

    def __init__(self, method: str, check: str, reason: str) -> None:
        self.method, self.check, self.reason = method, check, reason
        super().__init__(f"{method} fails the check {check!r}: {reason}")


class Breach(Exception):  # noqa: N818
    """What is wrong, before it is known which check fails."""


def require(holds: bool, reason: str) -> None:
    """Raise Breach unless a condition holds."""
    if not holds:
        raise Breach(reason)


def require_aliases(kind: type) -> None:
    """Raise Breach unless the groups of a class's `aliases` are names of its parameters."""
    aliases = getattr(kind, "aliases", ())
    names = [parameter.name for parameter in parameters(kind)]
    form = "groups of names, as (('rate', 't'),)"
    require(isinstance(aliases, tuple | list), f"aliases = {aliases!r}: expected {form}")
    for group in aliases:
        is_group = isinstance(group, tuple | list) and len(group) > 1
        reason = f"aliases = {aliases!r}: expected {form}; {group!r} is no group of two or more"
        require(is_group, reason)
        for name in group:
            known = ", ".join(names)
            reason = f"aliases = {aliases!r}: {name!r} is no parameter; there are {known}"
            require(name in names, reason)


def same(got: Tensor, want: Tensor, reason: str) -> None:
    """Raise Breach where logits (n, V) differ."""
    difference = (got - want).abs().amax(-1)
    wrong = (~(difference <= TOLERANCE)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise Breach(reason.format(at=at, by=f"{float(difference[at]):.2g}"))


def run(
    name: str, checks: Mapping[str, Callable[[T], str]], case: T, skip: Iterable[str] = ()
) -> dict[str, str]:
    """The result of each check of a case, by the check's name.

    Raises:
        ContractBroken: a check fails.
        InvalidValue: `skip` names no check.
    """
    skipped = set(skip)
    for unknown in skipped - set(checks):
        raise InvalidValue("skip", unknown, "names among " + ", ".join(checks), list(checks))
    results = {}
    for check, holds in checks.items():
        if check in skipped:
            continue
        try:
            results[check] = holds(case)
        except Breach as broken:
            raise ContractBroken(name, check, str(broken)) from None
        except Exception as error:  # whatever it does wrong, the check is named
            raise ContractBroken(name, check, f"{type(error).__name__}: {error}") from error
    return results

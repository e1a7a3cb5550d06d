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
    """A class does not keep its contract; the message says which check fails, and why."""


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
    for group in aliases:
        holds = isinstance(group, tuple | list) and len(group) > 1 and set(group) <= set(names)
        allowed = f"groups of two or more of {', '.join(names)}, as (('rate', 't'),)"
        require(holds, f"aliases = {aliases!r}: {group!r} is none; expected {allowed}")


def same(got: Tensor, want: Tensor, reason: str) -> None:
    """Raise Breach where logits (n, V) differ."""
    differences = (got - want).abs().amax(-1).tolist()
    for at, difference in enumerate(differences):
        require(difference <= TOLERANCE, reason.format(at=at, by=f"{difference:.2g}"))


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
    for check in (check for check in checks if check not in skipped):
        try:
            results[check] = checks[check](case)
        except Exception as error:  # whatever it does wrong, the check is named
            reason = str(error) if type(error) is Breach else f"{type(error).__name__}: {error}"
            raise ContractBroken(f"{name} fails the check {check!r}: {reason}") from error
    return results

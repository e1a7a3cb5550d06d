"""The exception every part of the project raises for a value a user can correct, and checks.

Each `check_*` returns the value that fits, and raises `InvalidValue` where none does.
"""

from __future__ import annotations

import copyreg
import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


class _Carried(Exception):  # noqa: N818 - no fault of its own
    """An exception that reaches another process as it is, whatever made its message."""

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidValue(_Carried, ValueError):  # noqa: N818
    """A value that cannot be used: which field, what came, what is allowed, the nearest match.

    The command line prints the message alone and exits with code 2; libraries let it propagate.

    Args:
        field: name of the parameter, option or file the user gave.
        value: what came.
        allowed: what would have been accepted, in words.
        choices: names to search for the nearest match of `value`, where there are any.
    """

    def __init__(
        self, field: str, value: object, allowed: str, choices: Iterable[str] = ()
    ) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        matches = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5)
        self.nearest = matches[0] if matches else None
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"{field} = {value!r}: expected {allowed}{hint}")


class BudgetExceeded(_Carried, RuntimeError):  # noqa: N818
    """A decode query was about to read more keys than its budget: a defect of the method."""

    def __init__(self, method: str, layer: int, read: int, budget: int) -> None:
        self.method, self.layer, self.read, self.budget = method, layer, read, budget
        super().__init__(
            f"{method}: a decode query of layer {layer} would read {read} keys, budget {budget}"
        )


class CompileWarning(UserWarning):
    """Something was to be compiled or captured and is not, with the reason."""


def check_int(
    field: str, value: object, least: float = -math.inf, allowed: str | None = None
) -> int:
    """Check that a parameter is an integer, numpy's included, of at least `least`."""
    words = allowed or ("an integer" if math.isinf(least) else f"an integer of at least {least}")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidValue(field, value, words if "integer" in words else f"an integer, {words}")
    if value < least:
        raise InvalidValue(field, value, words)
    return int(value)


def check_ints(
    field: str, value: object, least: float = -math.inf, allowed: str = "a list of integers"
) -> tuple[int, ...]:
    """Check that a parameter is a list of integers of at least `least`."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidValue(field, value, allowed)
    return tuple(check_int(field, number, least) for number in value)


def check_number(
    field: str,
    value: object,
    allowed: str = "a number",
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Check that a parameter is a finite number, numpy's included, within these bounds.

    Args:
        allowed: what is allowed, in words.
        least, most: bounds that may be reached.
        above, below: bounds that may not.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidValue(field, value, allowed if "number" in allowed else f"a number, {allowed}")
    number = int(value) if isinstance(value, Integral) else float(value)
    try:
        float(number)
    except OverflowError:  # of an integer: what reckons with it could not go on
        raise InvalidValue(field, value, allowed) from None
    if not math.isfinite(number):
        raise InvalidValue(field, value, allowed if "finite" in allowed else f"{allowed}, finite")
    if not (least <= number <= most and above < number < below):
        raise InvalidValue(field, value, allowed)
    return number


def check_share(field: str, value: object) -> float:
    """Check that a parameter is a number from 0 to 1."""
    return check_number(field, value, "a number from 0 to 1", least=0, most=1)


def check_choice(field: str, value: object, choices: Iterable[str]) -> str:
    """Check that a parameter is one of these names."""
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        raise InvalidValue(field, value, "one of " + ", ".join(map(repr, names)), names)
    return value


def check_flag(field: str, value: object) -> bool:
    """Check that a parameter is True or False."""
    if not isinstance(value, bool):
        raise InvalidValue(field, value, "True or False")
    return value

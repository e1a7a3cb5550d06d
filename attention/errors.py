"""The one exception every part of the project raises for a value a user can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InvalidValue(ValueError):  # noqa: N818
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


class BudgetExceeded(RuntimeError):  # noqa: N818
    """A decode query was about to read more keys than its budget: a defect of the method."""

    def __init__(self, method: str, layer: int, read: int, budget: int) -> None:
        self.method, self.layer, self.read, self.budget = method, layer, read, budget
        super().__init__(
            f"{method}: a decode query of layer {layer} would read {read} keys, budget {budget}"
        )

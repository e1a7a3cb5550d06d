"""Values of a header under the names of its architecture, each brought to its type."""

from __future__ import annotations

import math
from typing import Any

from experiments.grid.gguf.header import Header, Unconvertible

#: Values that change nothing of what is computed.
_IGNORED = {"tensor_data_layout", "rope.scaling.finetuned", "vocab_size"}

#: What whole numbers of a header may be at most; more is no number of a model.
_LARGEST = 1 << 31


class Values:
    """Takes values out; what nobody took changes a model in a way that is not known here.

    Args:
        header: of the file.
    """

    def __init__(self, header: Header) -> None:
        self.prefix = f"{header.architecture}."
        self._left = {
            name.removeprefix(self.prefix): value
            for name, value in header.values.items()
            if name.startswith(self.prefix)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: Any = None) -> Any:
        """A value of any type; the default where it is not there."""
        return self._left.pop(name, default)

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number.

        Raises:
            Unconvertible: it is missing and has no default, or is none.
        """
        value = self.take(name, default)
        if type(value) is not int or not least <= value < _LARGEST:
            self._refuse(name, value, f"a whole number of at least {least}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0.

        Raises:
            Unconvertible: it is missing and has no default, or is none.
        """
        value = self.take(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            self._refuse(name, value, "a number above 0")
        return float(value)

    def expect(self, name: str, value: Any) -> None:
        """Refuse a value that is there and another one.

        Raises:
            Unconvertible: it is.
        """
        found = self.take(name, value)
        if found != value:
            self._refuse(name, found, f"{value}")

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            Unconvertible: with the names.
        """
        left = sorted(self._left.keys() - _IGNORED)
        if left:
            named = ", ".join(f"{self.prefix}{name[:60]}" for name in left[:5])
            raise Unconvertible(f"it has values that are not known here: {named}")

    def _refuse(self, name: str, value: object, wanted: str) -> None:
        shown = "missing" if value is None else str(value)[:60]
        raise Unconvertible(f"its {self.prefix}{name} is {shown}, not {wanted}")

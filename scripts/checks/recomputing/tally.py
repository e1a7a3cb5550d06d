"""What a comparison found: numbers compared, the largest difference, what is wrong or left out."""

from __future__ import annotations

import math
from collections.abc import Callable


class Tally:
    """Kept while numbers are compared, and printed at the end."""

    def __init__(self) -> None:
        self.fields: dict[str, tuple[int, float]] = {}
        self.left_out: dict[str, str] = {}
        self.wrong: list[str] = []

    def count(self, of: str, field: str, apart: Callable[[], tuple[float, int]]) -> None:
        """One field of something: how far apart, in how many numbers; ValueError is too far."""
        number, largest = self.fields.get(field, (0, 0.0))
        try:
            off, count = apart()
        except ValueError as error:
            self.wrong.append(f"{of}: {field}: {error}")
            off, count = math.inf, 1
        self.fields[field] = (number + count, max(largest, off))

    def printed(self, of: str = "") -> int:
        """Everything, to stdout, the last line behind `of`; 1 where something disagrees."""
        print(f"{'field':52s} {'numbers':>8s} {'largest difference':>20s}")
        for name, (numbers, largest) in sorted(self.fields.items()):
            print(f"{name:52s} {numbers:8d} {largest:20.3g}")
        for name, why in sorted(self.left_out.items()):
            print(f"not recomputed: {name} ({why})")
        for line in self.wrong:
            print(f"DISAGREES: {line}")
        numbers = sum(numbers for numbers, _ in self.fields.values())
        print(
            f"{of}{numbers} numbers, {len(self.left_out)} fields left out, "
            f"{len(self.wrong)} disagreements"
        )
        return 1 if self.wrong else 0

"""Agreement: the model would give the same answer, again and again."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attention.errors import check_int
from lil.detectors.base.asking import Asking, Trial


@dataclass(frozen=True)
class Agreement(Asking):
    """Stops when `times` trial answers in a row are the same.

    Answer convergence (Liu and Wang, arXiv 2506.02536). Where we differ: what ends a sentence. A
    number is 48 bits of the BLAKE2b hash of an answer without blanks around it, or 0: none.

    Args:
        times: answers in a row that are enough.
        cue, at, words, tokens, on_stop, and errors: see `Asking`.
    """

    at: str | int = "sentence"
    times: int = 10

    name: ClassVar[str] = "agreement"
    ladder = ("times", (64, 48, 32, 24, 16, 12, 10, 8, 6, 5, 4, 3, 2))
    never: ClassVar[float] = sys.maxsize

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("times", self.times, 1)

    def number(self, trial: Trial) -> float:
        answer = trial.answer.strip()
        hashed = hashlib.blake2b(answer, digest_size=6).digest()
        return float(int.from_bytes(hashed, "big")) if answer else 0.0

    def evidence(self, numbers: Sequence[float]) -> dict[str, float]:
        newest = numbers[-self.times :]
        enough = len(newest) == self.times and {*newest} == {newest[-1]} != {0.0}
        return {"same": self.times, "asked": len(numbers)} if enough else {}

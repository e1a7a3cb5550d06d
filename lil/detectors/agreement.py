"""Agreement: the model would give the same answer, again and again."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attention.errors import check_int
from lil.detectors.base.asking import Asking, Reply


@dataclass(frozen=True)
class Agreement(Asking):
    """Stops when `times` trial answers in a row are the same.

    Answer convergence (Liu and Wang, arXiv 2506.02536), at the ends of sentences. Answers are the
    same where their bytes are, but for blanks around them; an empty one is none, and never counts.
    Its number is 48 bits of its BLAKE2b hash, 0 for none.

    Where we differ from the paper: what ends a sentence; the default is to stop, and
    `on_stop="answer"` goes on to the answer.

    Args:
        times: answers in a row that are enough.
        cue, at, words, tokens: what is asked and where, see `Asking`.
        on_stop: what follows; not `regenerate`.

    Raises:
        InvalidValue: a value outside its range, an empty cue, unknown action, or `regenerate`.
    """

    at: str | int = "sentence"
    times: int = 10

    name: ClassVar[str] = "agreement"
    ladder = ("times", (64, 48, 32, 24, 16, 12, 10, 8, 6, 5, 4, 3, 2))
    never: ClassVar[float] = sys.maxsize

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("times", self.times, 1)

    def number(self, reply: Reply) -> float:
        hashed = hashlib.blake2b(reply.answer, digest_size=6).digest()
        return float(int.from_bytes(hashed, "big")) if reply.answer else 0.0

    def evidence(self, numbers: Sequence[float]) -> dict[str, float] | None:
        newest = numbers[-self.times :]
        enough = len(newest) == self.times and {*newest} == {newest[-1]} != {0.0}
        return {"same": self.times, "asked": len(numbers)} if enough else None

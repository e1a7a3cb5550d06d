"""Stall: the model's hidden states return, again and again, to where they have been."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from attention.errors import check_int, check_number
from lil.chopper.chunks import ends_chunk
from lil.detectors.base.base import Verdict
from lil.detectors.base.signals import SignalDetector, SignalWatcher

if TYPE_CHECKING:
    from lil.hidden_states import Reading

# States of this many chunks are given room at first; then it doubles.
_ROOM = 64


@dataclass(frozen=True)
class Stall(SignalDetector):
    """Stops when chunk after chunk ends in a hidden state much like many earlier ones.

    After Duan et al., "Circular Reasoning" (arXiv 2601.05693), who find that states repeat before
    words do and add up the evidence with CUSUM. A chunk ends at a token with a blank line, or when
    it has `longest` tokens. Its similarity is the `before`-th largest cosine of its last token's
    state with those of earlier chunks, 0 while there are fewer. Of each, what it is above `drift`
    is added to a sum that never falls below 0; at `level` the generation stops.

    Where we differ from the paper: chunks, similarity and thresholds are our own, as no code of
    theirs is public. Several earlier chunks must be near: an honest second pass is as near to the
    first as a loop's second round. The thresholds were chosen on the shipped reasoner; other models
    need their own (`lil calibrate`). The number for a token exists one step later: `step` in the
    evidence counts the token behind the deciding chunk, which is kept.

    Args:
        block: whose output is read, from 0, or from -1 for the last.
        longest: tokens after which a chunk ends without a blank line.
        before: earlier chunks that must be as similar.
        drift: similarity that is expected, from -1 and below 1.
        level: sum that is enough.
        on_stop: what follows; not `regenerate`, as for `recurrence`.

    Raises:
        InvalidValue: a number outside its range, unknown action, or `regenerate`.
    """

    block: int = -1
    longest: int = 64
    before: int = 4
    drift: float = 0.9
    level: float = 0.2

    name: ClassVar[str] = "stall"
    ladder = ("level", (16.0, 8.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.3, 0.2, 0.1))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("block", self.block)
        check_int("longest", self.longest, 1)
        check_int("before", self.before, 1)
        check_number("drift", self.drift, "a number from -1 and below 1", least=-1, below=1)
        check_number("level", self.level, "a number above 0", above=0)

    @property
    def blocks(self) -> frozenset[int]:
        return frozenset([self.block])

    @property
    def signal(self) -> str:
        return f"stall-{self.block}-{self.longest}-{self.before}"

    def quiet(self) -> Stall:
        """One that takes note of every similarity and never fires."""
        return replace(self, level=sys.float_info.max)

    def watch(self, prompt: bytes = b"") -> Similarities:
        return Similarities(self, prompt)


class Similarities(SignalWatcher[Stall]):
    """States at the ends of chunks, and the sum so far."""

    event: ClassVar[str] = "ended a chunk"
    least: ClassVar[float] = -1
    most: ClassVar[float] = 1

    def __init__(self, stall: Stall, prompt: bytes = b"") -> None:
        super().__init__(stall, prompt)
        self.chunk = 0  # tokens of the chunk that goes on
        self.ends: list[int] = []
        self.states: npt.NDArray[np.float32] | None = None  # of chunks, of length 1, with room
        self.sum = 0.0
        self.similarity = 0.0

    def asks(self, piece: bytes) -> bool:
        self.chunk += 1
        if not ends_chunk(piece) and self.chunk < self.detector.longest:
            return False
        self.chunk = 0
        return True

    def number(self, reading: Reading) -> float:
        """How similar the state is to the `before`-th most similar one."""
        state = reading.hidden(self.detector.block).float().cpu().numpy()
        length = float(np.linalg.norm(state))
        if not np.isfinite(length):
            raise FloatingPointError(f"stall: hidden state of block {self.detector.block}")
        state = state / max(length, np.finfo(np.float32).tiny)
        n, before = len(self.numbers), self.detector.before
        if self.states is None:
            self.states = np.empty((_ROOM, len(state)), dtype=np.float32)
        elif n == len(self.states):
            self.states = np.concatenate((self.states, np.empty_like(self.states)))
        near = self.states[:n] @ state
        self.states[n] = state
        if n < before:
            return 0.0
        # Rounding must not leave the range of a cosine.
        return float(np.clip(np.partition(near, n - before)[n - before], -1, 1))

    def take(self, tokens: int, number: float) -> None:
        self.ends.append(tokens)
        self.similarity = number
        self.sum = max(0.0, self.sum + number - self.detector.drift)
        if not self.sum:
            self.ends.clear()

    def judge(self) -> Verdict | None:
        if self.sum < self.detector.level:
            return None
        evidence = {
            "step": self.tokens,
            "sum": self.sum,
            "similarity": self.similarity,
            "chunks": len(self.ends),
            "first_chunk_end": self.ends[0],
        }
        return Verdict("stall", self.tokens, evidence)

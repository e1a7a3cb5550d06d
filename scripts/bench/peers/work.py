"""What every peer is given, what a run of one gives back, and where two outputs part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Tokens = list[list[int]]


class PeerError(RuntimeError):
    """A peer that cannot run here; the message says why."""


class Run(NamedTuple):
    """One run of a peer: generated tokens of each prompt, the end included, and seconds."""

    tokens: Tokens
    seconds: float


def timed(make: Callable[[], Tokens]) -> Run:
    """A run in this process, on the CPU."""
    started = time.perf_counter()
    tokens = make()
    return Run(tokens, time.perf_counter() - started)


@dataclass(frozen=True)
class Work:
    """Prompts that are decoded together, greedily, to their end.

    Args:
        folder: of the model.
        prompts: token ids of each.
        max_new_tokens: most generated tokens of a prompt, the end included.
        eos: ids that end an output.
        pad: id for padding.
        threads: of every peer, over all its processes.
    """

    folder: str
    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    eos: frozenset[int]
    pad: int
    threads: int

    def ended(self, row: Sequence[int]) -> list[int]:
        """A row up to its end: what a padded batch computes behind it is no output."""
        end = next((i for i, token in enumerate(row) if token in self.eos), len(row))
        return list(row[: end + 1])


@dataclass(frozen=True)
class Peer:
    """One way to do the work.

    Args:
        name: what readers call it.
        kind: "one", "padded", "continuous", "vllm" or "ours".
        places: of the prompts it is given.
        backend, engine: of ours.
        processes: it runs in.
        forced: whether tokens are given to it rather than chosen.
        compiled: whether its decode steps are.
    """

    name: str
    kind: str
    places: tuple[int, ...]
    backend: str | None = None
    engine: str | None = None
    processes: int = 1
    forced: bool = False
    compiled: bool = False

    @property
    def full(self) -> bool:
        """Whether its tokens are to be those of full attention."""
        return self.backend in (None, "full") or self.forced


@dataclass
class Measured:
    """A peer and what was found of it.

    Attributes:
        peer: which.
        run: does the work with outputs of at most so many tokens; None where it cannot.
        reason: why it cannot.
        beside: what it is compared with, run directly before each timed run: full attention on the
            same tokens for a sparse backend, the bound for full attention; returns seconds.
        seconds: of its timed runs.
        beside_seconds: of what was run before each.
        tokens: of the last one, by place.
    """

    peer: Peer
    run: Callable[[int], Run] | None = None
    reason: str | None = None
    beside: Callable[[], float] | None = None
    seconds: list[float] = field(default_factory=list)
    beside_seconds: list[float] = field(default_factory=list)
    tokens: Tokens | None = None


def parting(row: Sequence[int], expected: Sequence[int]) -> int | None:
    """The first place where two outputs differ, 0 for their first token; None where they do not."""
    if list(row) == list(expected):
        return None
    pairs = enumerate(zip(row, expected, strict=False))
    shorter = min(len(row), len(expected))
    return next((i for i, (one, other) in pairs if one != other), shorter)

"""Answers to what watchers ask: copies of rows read a cue and decode a few tokens greedily."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attention import AttentionCache
from attention.core import devices
from lil.decoding.sampling import NotFiniteError
from lil.detectors.base.asking import Asking, Reply


@dataclass
class Fork:
    """A copy of a row: its place, tokens of its prompt, ids up to the answer, how many are read."""

    question: Asking
    place: int
    prompt: int
    ids: list[int]
    read: int
    begun: int = field(init=False)  # what was read before
    keys: float = 0.0
    answer: bytes = b""
    ended: bool = False
    best: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun = self.read

    def take(self, token: int, piece: bytes | None, best: float, entropy: float) -> None:
        """The answer's next token, without a piece where it ends the text."""
        self.ids.append(token)
        self.best.append(min(best, 0.0))
        self.entropies.append(max(entropy, 0.0))
        self.answer += piece or b""
        end = self.question.end(self.answer)
        self.answer = self.answer[:end]
        self.ended = end is not None or piece is None or len(self.best) == self.question.tokens

    def reply(self, token_sec: float) -> Reply:
        """The answer, at so many seconds a token."""
        tokens = self.read - self.begun
        costs = (float(tokens), self.keys, tokens * token_sec)
        return Reply(self.answer.strip(), self.best, self.entropies, costs)


def replies(
    cache: AttentionCache,
    forks: Sequence[Fork],
    table: Sequence[bytes],
    eos: AbstractSet[int],
    forward: Callable[..., Tensor],
    again: Callable[[AttentionCache, int, int, Sequence[int], bool], None],
) -> list[Reply]:
    """The forks' answers; the rows of `cache` stay as they are.

    Cues are read a token a step, as those of actions are. `table` and `eos` are those of
    `RunContext`, `forward` and `again` methods of `DecodeLoop`.
    """
    started, going = time.perf_counter(), list(forks)
    cache = cache.clone([fork.place for fork in forks])
    while going:
        for place in cache.outgrown:
            fork = going[place]
            again(cache, place, fork.prompt, fork.ids[: fork.read], True)
        column = devices.put([x.ids[x.read] for x in going], cache.seen.device, torch.int64)
        scores = forward(cache, input_ids=column[:, None], position_ids=cache.seen[:, None])
        likely = scores.double().log_softmax(-1)
        best, tokens = likely.max(-1)
        if not best.isfinite().all():
            raise NotFiniteError
        entropies = torch.special.entr(likely.exp()).sum(-1)
        columns = (tokens, best, entropies, cache.row_stats().keys_read)
        for fork, token, *numbers, keys in zip(going, *(x.tolist() for x in columns), strict=True):
            fork.read += 1
            fork.keys += keys
            if fork.read == len(fork.ids):
                fork.take(token, None if token in eos else table[token], *numbers)
        left = [at for at, fork in enumerate(going) if not fork.ended]
        if 0 < len(left) < len(going):
            cache.select_rows(left)
        going = [going[at] for at in left]
    token_sec = (time.perf_counter() - started) / sum(fork.read - fork.begun for fork in forks)
    return [fork.reply(token_sec) for fork in forks]

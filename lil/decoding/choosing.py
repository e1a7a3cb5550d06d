"""Every row's next token: penalties, then the sampler; behind a step, or in its graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from attention.core import devices
from lil.compression.matching import EMPTY
from lil.decoding.lane import Lane
from lil.decoding.sampling import Sampler
from lil.hidden_states import margins, widened
from lil.penalties import LZRows, Penalty, padded


def checked_tokens(tokens: Tensor, finite: Tensor) -> Tensor:
    """What the host gets of chosen tokens (B,): -1 in rows whose scores are not finite."""
    return tokens.masked_fill(~finite, -1)


class _Memories:
    """What penalties remember of the rows that are decoded together."""

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        # The loop's scores are its own, so nothing needs a copy of them.
        self._penalties = [p.in_place() for p in penalties if not p.neutral]
        self._memories: list[Any] = []
        self._rows: list[Lane] = []
        self._tokens: list[int] = []

    def _goes_on(self, rows: Sequence[Lane]) -> bool:
        """Whether these are the last call's rows, with one token more each."""
        # A token that is dropped makes it fewer by two, which no other token makes up for.
        tokens = [len(row.new_ids) - len(row.dropped) + row.unread for row in rows]
        # Lanes have no equality of their own: these are the same ones.
        same = self._rows == rows and [n + 1 for n in self._tokens] == tokens
        self._rows, self._tokens = list(rows), tokens
        return same

    def _begun(self, rows: Sequence[Lane], device: torch.device, vocabulary: int) -> list[Any]:
        """Memories of all tokens that the host has seen."""
        return [
            penalty.begin(_histories(rows, penalty, device), vocabulary)
            for penalty in self._penalties
        ]

    def _pushed(self, memories: Sequence[Any], newest: Tensor, live: Tensor | None) -> list[Any]:
        """Memories after one token more in the rows that are `live`, (B,); None: all."""
        pushed = []
        for penalty, memory in zip(self._penalties, memories, strict=True):
            taken = live
            if penalty.pad_token_id is not None:
                real = newest != penalty.pad_token_id
                taken = real if live is None else real & live
            pushed.append(penalty.push(memory, newest, taken))
        return pushed

    def _applied(self, memories: Sequence[Any], scores: Tensor) -> Tensor:
        for penalty, memory in zip(self._penalties, memories, strict=True):
            scores = penalty.apply(memory, scores)
        return scores


class BatchPenalties(_Memories):
    """Penalties behind a step.

    A step in which every row has one token more than at the last costs a push. Where rows joined,
    left or went back, everything is computed from the rows' tokens, which gives the same numbers.
    """

    def __call__(self, rows: Sequence[Lane], newest: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of the rows' next tokens, perhaps written in place.

        Of `newest` (B,) only tokens that the host has not seen count when all is computed anew.
        """
        if not self._penalties:
            return scores
        if self._goes_on(rows):
            self._memories = self._pushed(self._memories, newest, None)
        else:
            self._memories = self._begun(rows, scores.device, scores.shape[1])
            unread = [bool(row.unread) for row in rows]
            if any(unread):
                live = devices.put(unread, newest.device)
                self._memories = self._pushed(self._memories, newest, live)
        return self._applied(self._memories, scores)


class Chooser(_Memories):
    """What follows the scores in a step's graph (`decode_step.Then`): margins, penalties, sampler.

    All that it reads lies at fixed addresses. The host writes there what it alone knows: uniform
    numbers, and all memories where rows came, left or went back.

    Args:
        sampler: of the run.
        penalties: all of a fixed shape on the device, see `serves`.
        compared: ids of tokens whose margins are wanted.
        rows: the most rows.
        vocabulary: V, scores of a row.
    """

    def __init__(
        self,
        sampler: Sampler,
        penalties: Sequence[Penalty],
        compared: Iterable[int],
        rows: int,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        super().__init__(penalties)
        self._sampler, self._compared, self._vocabulary = sampler, tuple(compared), vocabulary
        with torch.inference_mode(False):
            self._uniforms = torch.zeros(rows, dtype=torch.float64, device=device)
            self._unread = torch.zeros(rows, dtype=torch.bool, device=device)
            nothing = torch.full((rows, 1), EMPTY, device=device)
            self._memories = [p.begin(nothing, vocabulary) for p in self._penalties]
        self._parts: dict[int, list[Any]] = {}  # memories of the first rows
        self._due: list[bool] = []  # what `_unread` holds

    @staticmethod
    def serves(penalties: Sequence[Penalty], device: torch.device) -> bool:
        """Whether a graph can hold them."""
        return all(p.neutral or p.fixed_shape(device) for p in penalties)

    @torch.inference_mode(False)
    @torch.no_grad()
    def prepare(self, rows: Sequence[Lane], uniforms: Sequence[float]) -> None:
        """Write what the next step of these rows needs of the host."""
        B, device = len(rows), self._uniforms.device
        if not self._sampler.greedy:
            self._uniforms[:B].copy_(devices.put(uniforms, device, torch.float64))
        if not self._penalties:
            return
        due = [True] * B
        if not self._goes_on(rows):
            due = [bool(row.unread) for row in rows]
            begun = self._begun(rows, device, self._vocabulary)
            for memory, now in zip(self._memories, begun, strict=True):
                _write(memory, now)
        if due != self._due:
            self._due = due
            self._unread[:B].copy_(devices.put(due, device))

    def __call__(self, scores: Tensor, ids: Tensor, live: Tensor) -> tuple[Tensor, ...]:
        """Tokens, what the host gets of them, and the margins, (R,) each."""
        R, scores = len(scores), widened(scores)
        compared = margins(scores, self._compared)
        if R not in self._parts:
            first = (x.first(R) if isinstance(x, LZRows) else x[:R] for x in self._memories)
            self._parts[R] = [*first]
        memories, unread = self._parts[R], self._unread[:R] & (live != 0)
        for memory, now in zip(memories, self._pushed(memories, ids[:, 0], unread), strict=True):
            if now is not memory:
                _write(memory, now)
        scores = self._applied(memories, scores)
        tokens, finite = self._sampler.draw(scores, self._uniforms[:R])
        return tokens, checked_tokens(tokens, finite), *compared


def _write(memory: Tensor | LZRows, now: Any) -> None:
    """Put another memory into the first rows of one."""
    if isinstance(memory, LZRows):
        memory.write(now)
    else:
        memory[: len(now)].copy_(now)


def _histories(rows: Sequence[Lane], penalty: Penalty, device: torch.device) -> Tensor:
    """What a penalty looks at, (B, n): right-aligned, with `EMPTY` before short rows."""
    histories = [
        [
            token
            for token in (*(row.prompt_ids if penalty.include_prompt else ()), *row.new_ids)
            if token != penalty.pad_token_id
        ]
        for row in rows
    ]
    return padded(histories, device)

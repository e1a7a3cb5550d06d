"""`lil.decode` as a peer, with tokens of its own or with tokens given to it step by step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attention.contract.backend import Backend
from lil import Request, decode
from lil.compression.matching import EMPTY
from lil.decoding.compiling import CompileWarning
from lil.penalties import StatefulPenalty
from peers.work import PeerError, Run, Tokens, timed


class Reading(NamedTuple):
    """Where each row is in the records, (B,) each."""

    record: Tensor
    next: Tensor


@dataclass(frozen=True, kw_only=True)
class Recorded(StatefulPenalty):
    """The next token is the one that a record has, whatever the scores say.

    A row is found by its prompt when rows come or go; a step costs one gather and one write a row.

    Args:
        records: (R, n), prompts with what follows them, filled up with `EMPTY`.
        prompts: (R,), tokens of each prompt: a row is at least as long as its own.

    Raises:
        PeerError: no record begins as a row does.
    """

    name: ClassVar[str] = "recorded"
    include_prompt: bool = True
    records: Tensor = field(compare=False)
    prompts: Tensor = field(compare=False)

    def begin(self, history: Tensor, _vocabulary: int, /) -> Reading:
        lengths = (history != EMPTY).sum(dim=1)
        found = []
        for row, n in zip(history, lengths.tolist(), strict=True):
            same = (self.records[:, :n] == row[len(row) - n :]).all(dim=1) & (self.prompts <= n)
            if not same.any():
                raise PeerError("a row left its recorded tokens")
            found.append(int(same.nonzero()[0]))
        return Reading(torch.tensor(found, device=history.device), lengths)

    def push(self, memory: Reading, newest: Tensor, live: Tensor | None) -> Reading:  # noqa: ARG002
        return Reading(memory.record, memory.next + 1)

    def apply(self, memory: Reading, scores: Tensor) -> Tensor:
        if not self._in_place:
            scores = scores.clone()
        token = self.records[memory.record, memory.next]
        # Finite, for the sampler refuses what is not.
        scores[torch.arange(len(token), device=scores.device), token] = torch.finfo(
            scores.dtype
        ).max
        return scores


class Decoding:
    """`lil.decode` of prompts, as many rows at a time as there are prompts.

    Args:
        model, tokenizer: loaded.
        token_bytes: of the tokenizer.
        prompts: token ids of each.
        backend, engine: how it attends.
        given: tokens that are forced on each prompt; None lets it choose.
        compiled: whether decode steps are.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        token_bytes: Sequence[bytes],
        prompts: Sequence[Sequence[int]],
        backend: Backend,
        engine: str,
        given: Tokens | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.table = model, tokenizer, token_bytes
        self.prompts, self.given = [list(prompt) for prompt in prompts], given
        self.backend, self.engine, self.compiled = backend, engine, compiled

    def __call__(self, limit: int) -> Run:
        """Generate at most `limit` tokens of each prompt.

        Raises:
            InvalidValue: a backend or an engine that cannot work here.
            PeerError: other tokens came out than those given, or steps cannot be compiled.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            try:
                return timed(lambda: self._decode(limit))
            except CompileWarning as warning:
                raise PeerError(str(warning)) from warning

    def _decode(self, limit: int) -> Tokens:
        caps, penalties = [limit] * len(self.prompts), []
        if self.given is not None:
            caps = [min(limit, len(row)) for row in self.given]
            penalties = [_recorded(self.prompts, self.given)]
        pairs = zip(self.prompts, caps, strict=True)
        traces = decode(
            self.model,
            self.tokenizer,
            [Request(prompt, max_new_tokens=cap) for prompt, cap in pairs],
            backend=self.backend,
            engine=self.engine,
            penalties=penalties,
            batch_size=len(self.prompts),
            token_bytes=self.table,
            compile="on" if self.compiled else "off",
            beyond_positions=True,  # what is asked is time, not text
        )
        made = [list(trace.new_ids) for trace in traces]
        if self.given is not None and made != [
            row[:cap] for row, cap in zip(self.given, caps, strict=True)
        ]:
            raise PeerError("other tokens than those given")
        return made


def _recorded(prompts: Tokens, given: Tokens) -> Recorded:
    rows = [prompt + row for prompt, row in zip(prompts, given, strict=True)]
    most = max(map(len, rows))
    records = [row + [EMPTY] * (most - len(row)) for row in rows]
    return Recorded(records=torch.tensor(records), prompts=torch.tensor([*map(len, prompts)]))

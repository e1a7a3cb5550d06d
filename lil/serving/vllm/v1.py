"""Processors for vLLM's V1 runner, which its CPU build uses.

The engine tells which requests joined, left and moved, and hands out the live list of each one's
generated tokens; a row of scores belongs to the request at its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from attention.core import devices
from lil.penalties import Penalty
from lil.serving.ending import Ending
from lil.serving.rows import PenaltyRows, padded
from lil.serving.vllm.requests import (
    StoppingServer,
    default_penalty,
    penalty_for,
    require_no_drafts,
)

T = TypeVar("T")


class _Processor(LogitsProcessor, Generic[T]):
    """Keeps our state of each request by its place in the batch."""

    def __init__(self) -> None:
        self.places: dict[int, T] = {}

    def _member(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> T | None:
        """The state of a request that joins; None where it asks for nothing."""
        raise NotImplementedError

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place in batch_update.removed:
            self.places.pop(place, None)
        for place, params, prompt, output in batch_update.added:
            self.places.pop(place, None)
            member = self._member(params, prompt or (), output)
            if member is not None:
                self.places[place] = member
        for source, target, direction in batch_update.moved:
            moved, replaced = self.places.pop(source, None), self.places.pop(target, None)
            if moved is not None:
                self.places[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self.places[source] = replaced


class PenalisedRequest:
    """A request with a penalty. Equality is identity: one that comes back is another one."""

    def __init__(self, penalty: Penalty, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.penalty, self.output = penalty, output
        self.prompt = prompt if penalty.include_prompt else ()


class PenaltyProcessor(_Processor[PenalisedRequest]):
    """A penalty of the requests that ask for it."""

    def __init__(
        self,
        kind: type[Penalty],
        vllm_config: VllmConfig,
        device: torch.device,
        is_pin_memory: bool,
    ) -> None:
        del is_pin_memory
        require_no_drafts(vllm_config)
        super().__init__()
        self._kind, self._device = kind, device
        self._default = default_penalty(kind, vllm_config)
        self._rows = PenaltyRows()

    def _member(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> PenalisedRequest | None:
        penalty = penalty_for(self._kind, params, self._default)
        return None if penalty is None else PenalisedRequest(penalty, prompt, output)

    def apply(self, logits: Tensor) -> Tensor:
        rows = sorted(self.places)
        requests = [self.places[row] for row in rows]
        newest = [request.output[-1] if request.output else 0 for request in requests]

        def histories(indices: Sequence[int]) -> Tensor:
            some = [requests[i] for i in indices]
            return padded([[*request.prompt, *request.output] for request in some], self._device)

        lengths = [len(request.prompt) + len(request.output) for request in requests]
        tokens = devices.put(newest, self._device, torch.int64)
        return self._rows.apply(requests, lengths, tokens, histories, rows, logits)


class WatchedRequest(NamedTuple):
    """A request under watch, and the live list of its generated tokens."""

    ending: Ending
    output: Sequence[int]


class StoppingProcessor(_Processor[WatchedRequest]):
    """Ends requests, or their thinking, by forcing the next token."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del device, is_pin_memory
        super().__init__()
        self._server = StoppingServer(vllm_config)

    def _member(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> WatchedRequest | None:
        stopping = self._server.stopping(params)
        if stopping is None:
            return None
        ending = self._server.ending(stopping, params, prompt)
        # One that was put back has been shown all but its last token.
        for token in output:
            self._server.see(ending, [token], len(output) - 1)
        return WatchedRequest(ending, output)

    def apply(self, logits: Tensor) -> Tensor:
        for row, request in self.places.items():
            for token in request.output[request.ending.seen :]:
                self._server.see(request.ending, [token])
            forced = request.ending.forced(len(request.output))
            if forced is not None:
                logits[row] = -torch.inf
                logits[row, forced] = 0
        return logits

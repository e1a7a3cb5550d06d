"""Processors for vLLM's V1 runner, which its CPU build uses.

The engine tells which requests joined, left and moved, and hands out the live list of each one's
generated tokens; a row of scores belongs to the request at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from attention.core import devices
from lil.penalties import Penalty
from lil.serving.counters import Counters
from lil.serving.ending import Ending
from lil.serving.rows import PenaltyRows, padded
from lil.serving.vllm.requests import (
    PenaltyValues,
    StoppingValues,
    counters_of,
    require_plain,
)

T = TypeVar("T")


class Places(Generic[T]):
    """What belongs to each request, by its place in the batch.

    Args:
        gone: told of each that left.
    """

    def __init__(self, gone: Callable[[T], None]) -> None:
        self.at: dict[int, T] = {}
        self._gone = gone

    def move(self, update: BatchUpdate) -> None:
        """Follow those that left and moved; those that joined are put in between by `join`."""
        for place, other, direction in update.moved:
            one, two = self.at.pop(place, None), self.at.pop(other, None)
            if one is not None:
                self.at[other] = one
            if two is not None and direction == MoveDirectionality.SWAP:
                self.at[place] = two

    def leave(self, update: BatchUpdate) -> None:
        """Forget those that left."""
        for place in update.removed:
            self._leave(place)

    def _leave(self, place: int) -> None:
        one = self.at.pop(place, None)
        if one is not None:
            self._gone(one)

    def join(self, place: int, one: T | None) -> None:
        """A request joins, in the place of one that leaves; None: one that is none of ours."""
        self._leave(place)
        if one is not None:
            self.at[place] = one


def _count(counters: Counters, what: str, output: Sequence[int], before: int) -> None:
    """A request leaves, for good or to come again, with more tokens than it joined with."""
    counters.count(what, int(bool(output) and not before), len(output) - before)


class Member:
    """A request with a penalty. Equality is identity: one that comes back is another one."""

    def __init__(self, penalty: Penalty, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.penalty, self.output, self.before = penalty, output, len(output)
        self.prompt = prompt if penalty.include_prompt else ()
        self.given = len(self.prompt)

    def history(self) -> list[int]:
        """All tokens."""
        return [*self.prompt, *self.output]


class PenaltyProcessor(LogitsProcessor):
    """A penalty of the requests that ask for it."""

    def __init__(
        self,
        values: PenaltyValues,
        vllm_config: VllmConfig,
        device: torch.device,
        is_pin_memory: bool,
    ) -> None:
        del is_pin_memory
        require_plain(vllm_config)
        self._values, self._default = values, values.default(vllm_config)
        self._device = device
        self._counters = counters_of(vllm_config)
        self._places: Places[Member] = Places(self._count)
        self._rows = PenaltyRows()
        self._order: list[int] = []  # places of the requests
        self._requests: list[Member] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        self._places.leave(batch_update)
        for place, params, prompt, output in batch_update.added:
            penalty = self._values.of(params, self._default)
            one = None if penalty is None else Member(penalty, prompt or (), output)
            self._places.join(place, one)
        self._places.move(batch_update)
        self._order = sorted(self._places.at)
        self._requests = [self._places.at[place] for place in self._order]

    def _count(self, one: Member) -> None:
        _count(self._counters, self._values.kind.name, one.output, one.before)

    def apply(self, logits: Tensor) -> Tensor:
        requests = self._requests
        newest = devices.put(
            [one.output[-1] if one.output else 0 for one in requests], self._device, torch.int64
        )

        def histories(which: Sequence[int]) -> Tensor:
            return padded([requests[i].history() for i in which], self._device)

        lengths = [one.given + len(one.output) for one in requests]
        return self._rows.apply(requests, lengths, newest, histories, self._order, logits)


class WatchedRequest(NamedTuple):
    """A request under watch, its tokens, and how many it had when it joined."""

    ending: Ending
    output: Sequence[int]
    before: int


class StoppingProcessor(LogitsProcessor):
    """Ends requests, or their thinking, by forcing the next token."""

    def __init__(
        self,
        values: StoppingValues,
        vllm_config: VllmConfig,
        device: torch.device,
        is_pin_memory: bool,
    ) -> None:
        del device, is_pin_memory
        self._server = values.server(vllm_config)
        self._places: Places[WatchedRequest] = Places(self._count)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        self._places.leave(batch_update)
        for place, params, prompt, output in batch_update.added:
            self._places.join(place, self._watched(params, prompt or (), output))
        self._places.move(batch_update)

    def _watched(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> WatchedRequest | None:
        stopping = self._server.stopping(params)
        if stopping is None:
            return None
        ending = self._server.ending(stopping, params, prompt)
        # One that was put back has been shown all but its last token.
        for token in output:
            self._server.see(ending, [token], len(output) - 1)
        return WatchedRequest(ending, output, len(output))

    def _count(self, one: WatchedRequest) -> None:
        _count(self._server.counters, "stop_on", one.output, one.before)

    def apply(self, logits: Tensor) -> Tensor:
        for place, (ending, output, _) in self._places.at.items():
            for token in output[ending.seen :]:
                self._server.see(ending, [token])
            forced = ending.forced(len(output))
            if forced is not None:
                logits[place] = -torch.inf
                logits[place, forced] = 0
        return logits

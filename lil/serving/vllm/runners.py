"""Processors for vLLM's runners: V1, which its CPU build uses, and V2, the default on GPUs.

V1 reports which requests joined, left and moved, and shares the live list of each request's tokens;
a row of scores belongs to the request at its place. V2 gives requests slots, which it recycles, and
names the slot of each row at every step. Its tokens lie on the device. Their number is known on the
host, so nothing waits for the device but a look at new tokens, every so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, process_dict_updates
from vllm.v1.sample.logits_processor import LogitsProcessor as Processor1
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as Processor2

from attention.core import devices
from lil.compression.matching import EMPTY
from lil.penalties import Penalty
from lil.serving.ending import Ending
from lil.serving.rows import HostRequest, PenaltyRequest, PenaltyRows, PenaltyStep
from lil.serving.values import Stopping
from lil.serving.vllm.requests import PenaltyServer, StoppingServer

T = TypeVar("T")


class _Places(Processor1, Generic[T]):
    """Keeps our state of each request by its place in the batch."""

    def __init__(self) -> None:
        self.places: dict[int, T] = {}

    def _member(
        self, params: SamplingParams, prompt: Sequence[int] | None, output: Sequence[int]
    ) -> T | None:
        """The state of a request that joins; None where it asks for nothing."""
        raise NotImplementedError

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.places, batch_update, self._member)


class PenaltyProcessor1(_Places[HostRequest]):
    """A penalty of the requests that ask for it."""

    def __init__(
        self, kind: type[Penalty], config: VllmConfig, _device: torch.device, _pinned: bool
    ) -> None:
        super().__init__()
        self._server, self._rows = PenaltyServer(kind, config), PenaltyRows()

    def _member(
        self, params: SamplingParams, prompt: Sequence[int] | None, output: Sequence[int]
    ) -> HostRequest | None:
        penalty = self._server.penalty(params)
        if penalty is None:
            return None
        return HostRequest(penalty, prompt or () if penalty.include_prompt else (), output)

    def apply(self, logits: Tensor) -> Tensor:
        rows = sorted(self.places)
        return self._rows.apply_on_host([self.places[row] for row in rows], rows, logits)


@dataclass(eq=False)
class SlotRequest(PenaltyRequest):
    """A request of V2, and the index of the first token that its penalty looks at."""

    slot: int
    first: int


class PenaltyProcessor2(Processor2):
    """A penalty of the requests that ask for it."""

    def __init__(self, kind: type[Penalty], config: VllmConfig, states: Any) -> None:
        self._server, self._states = PenaltyServer(kind, config), states
        self._slots: dict[int, SlotRequest] = {}
        self._rows = PenaltyRows()

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        penalty = self._server.penalty(sampling_params)
        self._slots.pop(req_idx, None)
        if penalty is not None:
            first = 0 if penalty.include_prompt else int(self._states.prompt_len.np[req_idx])
            self._slots[req_idx] = SlotRequest(penalty, req_idx, first)
        return penalty is not None

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        slots, visible = ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist()
        # A request that is not scheduled now may be again: then it is computed from its history.
        rows = [row for row, slot in enumerate(slots) if slot in self._slots]
        requests = [self._slots[slots[row]] for row in rows]
        pairs = zip(rows, requests, strict=True)
        lengths = [max(0, visible[row] - request.first) for row, request in pairs]
        newest = ctx.input_ids[devices.put(rows, logits.device, torch.int64)].long()
        tokens = self._states.all_token_ids.gpu

        def histories(indices: Sequence[int]) -> Tensor:
            longest = max(lengths[i] for i in indices)
            shape = (len(indices), longest)
            ids = torch.full(shape, EMPTY, dtype=torch.int64, device=tokens.device)
            for row, i in enumerate(indices):
                first, length = requests[i].first, lengths[i]
                ids[row, longest - length :] = tokens[requests[i].slot, first : first + length]
            return ids

        step = PenaltyStep(requests, lengths, newest, histories, rows)
        return self._rows.apply(step, logits)


class WatchedRequest(NamedTuple):
    """A request of V1 under watch, and the live list of its generated tokens."""

    ending: Ending
    output: Sequence[int]


class StoppingProcessor1(_Places[WatchedRequest]):
    """Ends requests, or their thinking, by forcing the next token."""

    def __init__(self, config: VllmConfig, _device: torch.device, _pinned: bool) -> None:
        super().__init__()
        self._server = StoppingServer(config)

    def _member(
        self, params: SamplingParams, prompt: Sequence[int] | None, output: Sequence[int]
    ) -> WatchedRequest | None:
        stopping = self._server.stopping(params)
        if stopping is None:
            return None
        ending = self._server.ending(stopping, params, prompt or ())
        # A request that was put back has been shown all but its last token.
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


@dataclass
class SlotWatch:
    """A request of V2 under watch; its `ending` is None before the first look.

    `prompt` counts the tokens before the first generated token, and `known` the generated tokens
    that were shown before the engine put the request back.
    """

    params: SamplingParams
    stopping: Stopping
    prompt: int
    known: int
    ending: Ending | None = None


class StoppingProcessor2(Processor2):
    """Ends requests, or their thinking, by forcing the next token.

    The state of a slot's last request stays until the slot is used again: the engine does not tell
    when a request ends.
    """

    def __init__(self, config: VllmConfig, states: Any) -> None:
        self._server, self._states = StoppingServer(config), states
        self._every = self._server.every(states.all_token_ids.gpu.device)
        self._slots: dict[int, SlotWatch] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._slots.pop(req_idx, None)
        stopping = self._server.stopping(sampling_params)
        if stopping is None:
            return False
        prompt = int(self._states.prompt_len.np[req_idx])
        generated = int(self._states.prefill_len.np[req_idx]) - prompt
        known = max(0, generated - 1) // self._every * self._every
        self._slots[req_idx] = SlotWatch(sampling_params, stopping, prompt, known)
        return True

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        rows, forced = [], []
        visible = ctx.seq_lens_upper_bound_np.tolist()
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            watch = self._slots.get(slot)
            if watch is None or visible[row] < int(self._states.prefill_len.np[slot]):
                continue
            generated = visible[row] - watch.prompt
            self._look(slot, watch, generated)
            token = None if watch.ending is None else watch.ending.forced(generated)
            if token is not None:
                rows.append(row)
                forced.append(token)
        if rows:
            index, tokens = (devices.put(x, logits.device, torch.int64) for x in (rows, forced))
            logits[index] = -torch.inf
            logits[index, tokens] = 0
        return logits

    def _look(self, slot: int, watch: SlotWatch, generated: int) -> None:
        """Read the new tokens of a slot, if it is time."""
        every, seen = self._every, 0 if watch.ending is None else watch.ending.seen
        end = generated // every * every
        if end <= seen:
            return
        tokens = self._states.all_token_ids.gpu[slot]
        if watch.ending is None:
            prompt = tokens[: watch.prompt].tolist()
            watch.ending = self._server.ending(watch.stopping, watch.params, prompt)
        new = tokens[watch.prompt + seen : watch.prompt + end].tolist()
        for start in range(0, len(new), every):
            self._server.see(watch.ending, new[start : start + every], watch.known)

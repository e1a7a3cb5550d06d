"""Processors for vLLM's V2 runner, the default on GPUs.

Requests have slots, which are recycled; rows of scores are reordered at every step and the engine
tells the slot of each. Tokens lie on the device. How many there are is known on the host, so
nothing waits for the device but a look at new tokens, every so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from attention.core import devices
from lil.compression.matching import EMPTY
from lil.penalties import Penalty
from lil.serving.ending import Ending
from lil.serving.rows import PenaltyRows
from lil.serving.values import Stopping
from lil.serving.vllm.requests import (
    StoppingServer,
    default_penalty,
    penalty_for,
    require_no_drafts,
)


@dataclass(frozen=True, eq=False)
class Occupant:
    """A slot's request with a penalty. Equality is identity: the next occupant is another one.

    Attributes:
        first: index of the first token of its history.
    """

    penalty: Penalty
    slot: int
    first: int


class PenaltyProcessor(LogitsProcessor):
    """A penalty of the requests that ask for it."""

    def __init__(
        self, kind: type[Penalty], vllm_config: VllmConfig, req_states: LogitsProcRequestState
    ) -> None:
        require_no_drafts(vllm_config)
        self._kind, self._default = kind, default_penalty(kind, vllm_config)
        self._states = req_states
        self._slots: dict[int, Occupant] = {}
        self._rows = PenaltyRows()

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        penalty = penalty_for(self._kind, sampling_params, self._default)
        self._slots.pop(req_idx, None)
        if penalty is not None:
            first = 0 if penalty.include_prompt else int(self._states.prompt_len.np[req_idx])
            self._slots[req_idx] = Occupant(penalty, req_idx, first)
        return penalty is not None

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        slots, visible = ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist()
        # A request that is not scheduled now may be again: then it is computed from its history.
        rows = [row for row, slot in enumerate(slots) if slot in self._slots]
        requests = [self._slots[slots[row]] for row in rows]
        lengths = [
            max(0, visible[row] - request.first)
            for row, request in zip(rows, requests, strict=True)
        ]
        newest = ctx.input_ids[devices.put(rows, logits.device, torch.int64)].long()
        tokens = self._states.all_token_ids.gpu

        def histories(indices: Sequence[int]) -> Tensor:
            longest = max(lengths[i] for i in indices)
            shape = (len(indices), longest)
            ids = torch.full(shape, EMPTY, dtype=torch.int64, device=tokens.device)
            for row, i in enumerate(indices):
                request, length = requests[i], lengths[i]
                end = request.first + length
                ids[row, longest - length :] = tokens[request.slot, request.first : end]
            return ids

        return self._rows.apply(requests, lengths, newest, histories, rows, logits)


class RequestWatch:
    """A request under watch.

    Attributes:
        prompt: tokens before the first generated one.
        known: generated tokens that it was shown before its engine put it back.
        ending: None before the first look.
    """

    def __init__(self, params: SamplingParams, stopping: Stopping, prompt: int, known: int) -> None:
        self.params, self.stopping, self.prompt, self.known = params, stopping, prompt, known
        self.ending: Ending | None = None

    @property
    def seen(self) -> int:
        """Generated tokens that it has been shown."""
        return 0 if self.ending is None else self.ending.seen


class StoppingProcessor(LogitsProcessor):
    """Ends requests, or their thinking, by forcing the next token.

    The state of a slot's last request stays until the slot is used again: the engine does not tell
    when a request ends.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        self._server = StoppingServer(vllm_config)
        self._states = req_states
        self._every = self._server.every(req_states.all_token_ids.gpu.device)
        self._slots: dict[int, RequestWatch] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._slots.pop(req_idx, None)
        stopping = self._server.stopping(sampling_params)
        if stopping is None:
            return False
        prompt = int(self._states.prompt_len.np[req_idx])
        generated = int(self._states.prefill_len.np[req_idx]) - prompt
        known = max(0, generated - 1) // self._every * self._every
        self._slots[req_idx] = RequestWatch(sampling_params, stopping, prompt, known)
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

    def _look(self, slot: int, watch: RequestWatch, generated: int) -> None:
        """Read the new tokens of a slot, if it is time."""
        every = self._every
        end = generated // every * every
        if end <= watch.seen:
            return
        tokens = self._states.all_token_ids.gpu[slot]
        if watch.ending is None:
            prompt = tokens[: watch.prompt].tolist()
            watch.ending = self._server.ending(watch.stopping, watch.params, prompt)
        new = tokens[watch.prompt + watch.seen : watch.prompt + end].tolist()
        for start in range(0, len(new), every):
            self._server.see(watch.ending, new[start : start + every], watch.known)

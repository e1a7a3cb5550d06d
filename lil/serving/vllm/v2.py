"""Processors for vLLM's V2 runner, the default on GPUs.

Requests have slots, which are recycled; rows of scores are reordered at every step and the engine
says which slot each belongs to. Tokens lie on the device. How many there are is known on the host,
so nothing waits for the device but a look at new tokens, every so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from lil.serving.vllm.requests import PenaltyValues, StoppingValues, counters_of


@dataclass(frozen=True, eq=False)
class Occupant:
    """A request with a penalty, equal to itself alone: a slot's next occupant is another one.

    Args:
        penalty: what it asked for.
        slot: where its tokens lie.
        first: index of the first token of its history.
    """

    penalty: Penalty
    slot: int
    first: int


class PenaltyProcessor(LogitsProcessor):
    """A penalty of the requests that ask for it.

    Under speculative decoding a request has a row for each draft, scored before it is known which
    are kept: each row has the penalty of its own history, the drafts before it among it. What is
    kept is then what would have been chosen without drafts. Every row is computed anew at each
    step, and where the rows stand has to be read from the device.
    """

    def __init__(
        self, values: PenaltyValues, vllm_config: VllmConfig, req_states: LogitsProcRequestState
    ) -> None:
        self._values, self._default = values, values.default(vllm_config)
        self._states, self._counters = req_states, counters_of(vllm_config)
        self._slots: dict[int, Occupant] = {}
        self._rows = PenaltyRows()
        self._kept: dict[int, int] = {}  # generated tokens by slot, under drafts
        self._drafts = vllm_config.speculative_config is not None

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        penalty = self._values.of(sampling_params, self._default)
        self._slots.pop(req_idx, None)
        lengths = self._states.prefill_len.np[req_idx] - self._states.prompt_len.np[req_idx]
        self._kept[req_idx] = int(lengths)  # of one that was put back
        if penalty is not None:
            first = 0 if penalty.include_prompt else int(self._states.prompt_len.np[req_idx])
            self._slots[req_idx] = Occupant(penalty, req_idx, first)
        return penalty is not None

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        if self._drafts:
            return self._apply_to_drafts(logits, ctx)
        slots = ctx.idx_mapping_np.tolist()
        rows = [row for row, slot in enumerate(slots) if slot in self._slots]
        # A request that is not scheduled now may be again: then it is computed from its history.
        requests = [self._slots[slots[row]] for row in rows]
        visible = ctx.seq_lens_upper_bound_np.tolist()
        lengths = [
            max(0, visible[row] - one.first) for row, one in zip(rows, requests, strict=True)
        ]
        began, read = self._states.prompt_len.np, self._states.prefill_len.np
        seen = [(visible[row], one.slot) for row, one in zip(rows, requests, strict=True)]
        first = sum(tokens == int(began[slot]) for tokens, slot in seen)
        chosen = sum(tokens >= int(read[slot]) for tokens, slot in seen)
        self._counters.count(self._values.kind.name, first, chosen)
        newest = ctx.input_ids[devices.put(rows, logits.device, torch.int64)].long()
        tokens = self._states.all_token_ids.gpu

        def histories(which: Sequence[int]) -> Tensor:
            return _histories(tokens, [(requests[i], lengths[i]) for i in which])

        return self._rows.apply(requests, lengths, newest, histories, rows, logits)

    def _apply_to_drafts(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        slots, offsets, places = (
            of.tolist() for of in (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos)
        )
        rows = [row for row, slot in enumerate(slots) if slot in self._slots]
        # Two rows of a request are two histories.
        requests = [replace(self._slots[slots[row]]) for row in rows]
        tokens, fed = self._states.all_token_ids.gpu, ctx.input_ids
        given: list[Tensor] = []
        for row, one in zip(rows, requests, strict=True):
            kept = places[row] - offsets[row] + 1
            drafts = fed[row - offsets[row] + 1 : row + 1]
            both = torch.cat([tokens[one.slot, :kept].long(), drafts.long()])
            given.append(both[one.first :])
        self._count(rows, slots, offsets, places)
        newest = fed[devices.put(rows, logits.device, torch.int64)].long()

        def histories(which: Sequence[int]) -> Tensor:
            return _padded([given[i] for i in which])

        lengths = [len(one) for one in given]
        return PenaltyRows().apply(requests, lengths, newest, histories, rows, logits)

    def _count(
        self, rows: Sequence[int], slots: list[int], offsets: list[int], places: list[int]
    ) -> None:
        """Count what was kept since the last step; of a request's last step nobody tells."""
        first = chosen = 0
        for row in rows:
            if offsets[row] == 0:
                one = self._slots[slots[row]]
                generated = places[row] + 1 - int(self._states.prompt_len.np[one.slot])
                first += generated == 0
                chosen += max(0, generated - self._kept.get(one.slot, 0))
                self._kept[one.slot] = max(0, generated)
        self._counters.count(self._values.kind.name, first, chosen)


def _padded(histories: Sequence[Tensor]) -> Tensor:
    """Histories (B, n), right-aligned with `EMPTY` before short ones."""
    most = max(map(len, histories))
    pad = torch.nn.functional.pad
    return torch.stack([pad(one, (most - len(one), 0), value=EMPTY) for one in histories])


def _histories(tokens: Tensor, requests: Sequence[tuple[Occupant, int]]) -> Tensor:
    """Histories (B, n) of so many tokens each, right-aligned with `EMPTY` before short ones."""
    most = max(length for _, length in requests)
    found = torch.full((len(requests), most), EMPTY, dtype=torch.int64, device=tokens.device)
    for row, (one, length) in enumerate(requests):
        if length:
            found[row, most - length :] = tokens[one.slot, one.first : one.first + length]
    return found


class RequestWatch:
    """A request under watch; nothing of it is known until its first look.

    Args:
        params: of the request.
        stopping: what it asked for.
        prompt: its tokens before the first generated one.
        known: generated tokens that it was shown before its engine put it back.
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

    What watched a slot's last request stays until the slot is used again: nobody says when it ends.
    """

    def __init__(
        self, values: StoppingValues, vllm_config: VllmConfig, req_states: LogitsProcRequestState
    ) -> None:
        self._server = values.server(vllm_config)
        self._states = req_states
        self._every = self._server.every(req_states.all_token_ids.gpu.device)
        self._slots: dict[int, RequestWatch] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._slots.pop(req_idx, None)
        stopping = self._server.stopping(sampling_params)
        if stopping is None:
            return False
        prompt, there = (
            int(of.np[req_idx]) for of in (self._states.prompt_len, self._states.prefill_len)
        )
        every = self._every
        known = max(0, there - prompt - 1) // every * every
        self._slots[req_idx] = RequestWatch(sampling_params, stopping, prompt, known)
        return True

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        rows, forced = [], []
        first = chosen = 0
        visible = ctx.seq_lens_upper_bound_np.tolist()
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            one = self._slots.get(slot)
            if one is None or visible[row] < int(self._states.prefill_len.np[slot]):
                continue
            generated = visible[row] - one.prompt
            first, chosen = first + (generated == 0), chosen + 1
            self._look(slot, one, generated)
            token = None if one.ending is None else one.ending.forced(generated)
            if token is not None:
                rows.append(row)
                forced.append(token)
        self._server.counters.count("stop_on", first, chosen)
        if rows:
            at, tokens = (devices.put(of, logits.device, torch.int64) for of in (rows, forced))
            logits[at] = -torch.inf
            logits[at, tokens] = 0
        return logits

    def _look(self, slot: int, one: RequestWatch, generated: int) -> None:
        """Read the tokens of a slot, if it is time."""
        every = self._every
        upto = generated // every * every
        if upto <= one.seen:
            return
        of = self._states.all_token_ids.gpu[slot]
        if one.ending is None:
            prompt = of[: one.prompt].tolist()
            one.ending = self._server.ending(one.stopping, one.params, prompt)
        new = of[one.prompt + one.seen : one.prompt + upto].tolist()
        for start in range(0, len(new), every):
            self._server.see(one.ending, new[start : start + every], one.known)

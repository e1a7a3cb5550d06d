"""Penalties and stopping in SGLang, sent with the request that wants them.

    body["custom_logit_processor"] = LZPenalty.to_str()
    body["sampling_params"]["custom_params"] = {"lz": "on"}

The server needs `--enable-custom-logit-processor` and this package. SGLang makes a new processor
whenever requests join or leave a batch, so state stays with the request. A value that cannot be
used ends its request alone, with a message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any, ClassVar

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_STR
from sglang.srt.runtime_context import get_schedule
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from torch import Tensor

from attention.errors import InvalidValue
from lil import penalties
from lil.detectors import Answer
from lil.penalties import Penalty
from lil.serving.ending import Ending, Limits, Words, end_of, log_verdict
from lil.serving.rows import HostRequest, PenaltyRows
from lil.serving.values import CUE, penalty_of, stopping_of

__all__ = ["DRYPenalty", "LZPenalty", "NoWaitPenalty", "PresenceWindowPenalty", "StopOn"]

#: The key under which SGLang adds the request itself to the request's values.
REQUEST = "__req__"

# Processors come and go with every batch: these belong to the process. A tokenizer's bytes take a
# second to find.
_words = lru_cache(maxsize=4)(Words)
_LOG = logging.getLogger("sglang.lil")


@cache
def _penalty_rows(kind: type[Penalty]) -> PenaltyRows:
    del kind
    return PenaltyRows()


class _Processor(CustomLogitProcessor):
    """Calls `_apply` with the rows whose requests can be served, and ends the others."""

    #: The attribute of a request that holds its state.
    _attribute: ClassVar[str]

    def __call__(
        self, logits: Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> Tensor:
        """The scores (B, V), raw, written in place; each row has its values and its request."""
        rows: dict[int, tuple[Any, Any]] = {}
        seen: set[int] = set()
        for row, params in enumerate(custom_param_list or ()):
            if not params or REQUEST not in params:
                continue
            request = params[REQUEST]
            try:
                if not hasattr(request, self._attribute):
                    setattr(request, self._attribute, self._state(params))
                state = getattr(request, self._attribute)
                if id(request.output_ids) in seen:
                    allowed = "no drafts: they are scored before it is known which are kept"
                    raise InvalidValue("speculative decoding", "on", allowed)
            except InvalidValue as error:
                status = HTTPStatus.BAD_REQUEST
                request.to_finish = FINISH_ABORT(str(error), status, "BadRequestError")
                continue
            seen.add(id(request.output_ids))
            if state is not None:
                rows[row] = (request, state)
        return self._apply(logits, rows) if rows else logits

    def _state(self, params: Mapping[str, Any]) -> Any:
        """The state of a request with these values; None where it asks for nothing."""
        raise NotImplementedError

    def _apply(self, logits: Tensor, rows: Mapping[int, tuple[Any, Any]]) -> Tensor:
        raise NotImplementedError


class _Penalty(_Processor):
    kind: ClassVar[type[Penalty]]

    def _state(self, params: Mapping[str, Any]) -> HostRequest | None:
        penalty = penalty_of(self.kind, params)
        if penalty is None or penalty.neutral:
            return None
        if not get_schedule().disable_overlap_schedule:
            allowed = "a server with --disable-overlap-schedule: otherwise the newest token is not"
            raise InvalidValue(self.kind.name, "on", f"{allowed} known yet when the next is chosen")
        request = params[REQUEST]
        if self.kind.reads_tokens:
            penalty = _words(request.tokenizer).bound(penalty)
        prompt = request.origin_input_ids if penalty.include_prompt else ()
        return HostRequest(penalty, prompt, request.output_ids)

    def _apply(self, logits: Tensor, rows: Mapping[int, tuple[Any, HostRequest]]) -> Tensor:
        for request, state in rows.values():
            state.output = request.output_ids
        states = [state for _, state in rows.values()]
        return _penalty_rows(self.kind).apply_on_host(states, [*rows], logits)


class LZPenalty(_Penalty):
    """The LZ penalty (`lil.LZPenalty`) of requests with `lz`, or `lz_alpha`, `lz_formula`, ..."""

    kind, _attribute = penalties.LZPenalty, "_lil_lz"


class DRYPenalty(_Penalty):
    """DRY (`lil.penalties.DRYPenalty`) of requests with `dry` or `dry_multiplier` and so on."""

    kind, _attribute = penalties.DRYPenalty, "_lil_dry"


class PresenceWindowPenalty(_Penalty):
    """`lil.penalties.PresenceWindowPenalty` of requests with `presence_window` and so on."""

    kind, _attribute = penalties.PresenceWindowPenalty, "_lil_presence_window"


class NoWaitPenalty(_Penalty):
    """NoWait (`lil.penalties.NoWaitPenalty`), with its own words, of requests with `nowait`."""

    kind, _attribute = penalties.NoWaitPenalty, "_lil_nowait"


class StopOn(_Processor):
    """Ends requests with `stop_on`, or their thinking, when a detector fires.

    Under SGLang's overlapping schedule the newest token is not known yet when the next one is
    chosen: then a verdict comes one token late. `stop_on_cue` may be sent here, too.
    """

    _attribute = "_lil_stop_on"

    def _state(self, params: Mapping[str, Any]) -> Ending | None:
        values = {key: value for key, value in params.items() if key not in (REQUEST, CUE)}
        stopping = stopping_of(values, cue=params.get(CUE, Answer.cue))
        if stopping is None:
            return None
        request = params[REQUEST]
        if getattr(request, "grammar", None) is not None:
            allowed = "nothing, where a grammar decides which tokens may follow"
            raise InvalidValue("stop_on", params["stop_on"], allowed)
        words, sampling = _words(request.tokenizer), request.sampling_params
        words.check(stopping.detectors)
        stops = sorted({*(sampling.stop_token_ids or ()), *(request.eos_token_ids or ())})
        end = end_of(stopping, request.tokenizer.eos_token_id, stops)
        # Under `ignore_eos` SGLang accepts no stop token: `to_finish` ends the request.
        ends = () if sampling.ignore_eos else (end, *stops)
        limits = Limits(
            frozenset(token for token in ends if token is not None),
            end,
            sampling.min_new_tokens,
            sampling.max_new_tokens,
        )
        return Ending(stopping, words.text(request.origin_input_ids), words, limits)

    def _apply(self, logits: Tensor, rows: Mapping[int, tuple[Any, Ending]]) -> Tensor:
        for row, (request, ending) in rows.items():
            generated = _chosen(request)
            ending.lag = generated - len(request.output_ids)
            new = request.output_ids[ending.seen :]
            verdict = ending.see(new) if len(new) else None
            if verdict is not None:
                log_verdict(_LOG, verdict)
            forced = ending.forced(generated)
            if forced is not None:
                logits[row] = -torch.inf
                logits[row, forced] = 0
            if ending.over(generated) and generated >= ending.limits.least:
                reason = ending.reason or "the answer has had its tokens"
                request.to_finish = FINISH_MATCHED_STR(f"lil: {reason}")
        return logits


def _chosen(request: Any) -> int:
    """Tokens of a request that have been chosen, whether or not they have reached the host.

    Under the overlapping schedule the newest is on its way, unless there is a grammar in the batch.
    A request that was put back is read anew: its steps are counted from there.
    """
    steps: int = request.decode_batch_idx
    if steps == 0:
        request._lil_before = len(request.output_ids)
    # A server that decodes what another one read never sees step 0.
    before: int = getattr(request, "_lil_before", 0)
    return before + steps

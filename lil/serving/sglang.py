"""Penalties and stopping in SGLang, sent with the request that wants them.

    body["custom_logit_processor"] = LZPenalty.to_str()
    body["sampling_params"]["custom_params"] = {"lz": "on"}

The server needs `--enable-custom-logit-processor` and this package. SGLang makes a new processor
whenever requests join or leave a batch, so all that is remembered stays with the request. What
cannot be done ends the request alone, with a message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_STR
from sglang.srt.runtime_context import get_schedule
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from torch import Tensor

from attention.core import devices
from attention.errors import InvalidValue
from lil import penalties
from lil.detectors import Answer
from lil.penalties import Penalty
from lil.serving.counters import Counters
from lil.serving.ending import Ending, Limits, Words, end_of
from lil.serving.keys import CUE
from lil.serving.rows import PenaltyRows, padded
from lil.serving.values import penalty_of, stopping_of
from lil.serving.verdict_log import VerdictLog

__all__ = ["DRYPenalty", "LZPenalty", "PresenceWindowPenalty", "StopOn"]

#: What SGLang adds to a request's values: the request itself.
REQUEST = "__req__"

T = TypeVar("T")

# The tokenizer's bytes are the same for all requests, and take a second to find.
_words = lru_cache(maxsize=4)(Words)


@lru_cache(maxsize=1)
def _verdicts() -> VerdictLog:
    """The counters of this process: processors come and go with every batch."""
    return VerdictLog(logging.getLogger("sglang.lil"), _counters())


@cache
def _counters() -> Counters:
    return Counters()


class _Processor(CustomLogitProcessor):
    """Calls `_rows` with those rows whose requests can be served; ends the others."""

    #: Where what was made of a request's values is kept.
    _place: ClassVar[str]

    def __call__(
        self, logits: Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> Tensor:
        """The scores, written in place.

        Args:
            logits: (B, V), raw.
            custom_param_list: of each row, its request's values and the request.
        """
        rows: dict[int, tuple[Any, Any]] = {}
        seen: set[int] = set()
        for row, params in enumerate(custom_param_list or ()):
            if not params or REQUEST not in params:
                continue
            request = params[REQUEST]
            try:
                own = _kept(request, self._place, params, self._of)
                if id(request.output_ids) in seen:
                    allowed = "no drafts: they are scored before it is known which are kept"
                    raise InvalidValue("speculative decoding", "on", allowed)
            except InvalidValue as error:
                status = HTTPStatus.BAD_REQUEST
                request.to_finish = FINISH_ABORT(str(error), status, "BadRequestError")
                continue
            seen.add(id(request.output_ids))
            if own is not None:
                rows[row] = (request, own)
        return self._rows(logits, rows) if rows else logits

    def _of(self, params: Mapping[str, Any]) -> Any:
        """What a request asks for, or None."""
        raise NotImplementedError

    def _rows(self, logits: Tensor, rows: Mapping[int, tuple[Any, Any]]) -> Tensor:
        raise NotImplementedError


def _kept(request: Any, place: str, params: Mapping[str, Any], make: Any) -> Any:
    """What was made of a request's values, once."""
    try:
        return getattr(request, place)
    except AttributeError:
        made = make(params)
        setattr(request, place, made)
        return made


class PenaltyTicket:
    """What stays with a request that asked for a penalty. Equality is identity."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty


@cache
def _penalised(kind: type[Penalty]) -> PenaltyRows:
    """What is remembered in this process: processors come and go with every batch."""
    del kind
    return PenaltyRows()


class _Penalty(_Processor):
    kind: ClassVar[type[Penalty]]

    def _of(self, params: Mapping[str, Any]) -> PenaltyTicket | None:
        penalty = penalty_of(self.kind, params)
        if penalty is None or penalty.neutral:
            return None
        if not get_schedule().disable_overlap_schedule:
            allowed = "a server with --disable-overlap-schedule: otherwise the newest token is not"
            raise InvalidValue(self.kind.name, "on", f"{allowed} known yet when the next is chosen")
        return PenaltyTicket(penalty)

    def _rows(self, logits: Tensor, rows: Mapping[int, tuple[Any, PenaltyTicket]]) -> Tensor:
        given, device = list(rows.values()), logits.device
        first = sum(not len(request.output_ids) for request, _ in given)
        _counters().count(self.kind.name, first, len(given))
        lengths = [
            len(request.output_ids)
            + (len(request.origin_input_ids) if own.penalty.include_prompt else 0)
            for request, own in given
        ]
        newest = [request.output_ids[-1] if len(request.output_ids) else 0 for request, _ in given]

        def histories(which: Sequence[int]) -> Tensor:
            return padded([_history(*given[i]) for i in which], device)

        return _penalised(self.kind).apply(
            [own for _, own in given],
            lengths,
            devices.put(newest, device, torch.int64),
            histories,
            list(rows),
            logits,
        )


def _chosen(request: Any) -> int:
    """Tokens of a request that have been chosen, be they known here or still on their way.

    Under the overlapping schedule the newest is on its way, unless there is a grammar in the batch.
    A request that was put back is read anew: its steps are counted from there.
    """
    steps: int = request.decode_batch_idx
    if steps == 0:
        request._lil_before = len(request.output_ids)
    # A server that decodes what another one read never sees step 0.
    before: int = getattr(request, "_lil_before", 0)
    return before + steps


def _history(request: Any, own: PenaltyTicket) -> list[int]:
    prompt = request.origin_input_ids if own.penalty.include_prompt else ()
    return [*prompt, *request.output_ids]


class LZPenalty(_Penalty):
    """The LZ penalty (`lil.LZPenalty`) of requests with `lz`, or `lz_alpha`, `lz_formula`, ..."""

    kind, _place = penalties.LZPenalty, "_lil_lz"


class DRYPenalty(_Penalty):
    """DRY (`lil.penalties.DRYPenalty`) of requests with `dry` or `dry_multiplier` and so on."""

    kind, _place = penalties.DRYPenalty, "_lil_dry"


class PresenceWindowPenalty(_Penalty):
    """`lil.penalties.PresenceWindowPenalty` of requests with `presence_window` and so on."""

    kind, _place = penalties.PresenceWindowPenalty, "_lil_presence_window"


class StopOn(_Processor):
    """Ends requests with `stop_on`, or their thinking, when a detector fires.

    Under SGLang's overlapping schedule the newest token is not known yet when the next one is
    chosen: then a verdict comes one token late. `stop_on_cue` may be sent here, too.
    """

    _place = "_lil_stop_on"

    def _of(self, params: Mapping[str, Any]) -> Ending | None:
        given = {key: value for key, value in params.items() if key not in (REQUEST, CUE)}
        stopping = stopping_of(given, cue=params.get(CUE, Answer.cue))
        if stopping is None:
            return None
        request = params[REQUEST]
        if getattr(request, "grammar", None) is not None:
            allowed = "nothing, where a grammar decides which tokens may follow"
            raise InvalidValue("stop_on", params["stop_on"], allowed)
        words, own = _words(request.tokenizer), request.sampling_params
        words.check(stopping.detectors)
        stops = sorted({*(own.stop_token_ids or ()), *(request.eos_token_ids or ())})
        end = end_of(stopping, request.tokenizer.eos_token_id, stops)
        # Under `ignore_eos` SGLang heeds no stop token: it is told of the end in another way.
        ends = frozenset(one for one in (end, *stops) if one is not None and not own.ignore_eos)
        limits = Limits(ends, end, own.min_new_tokens, own.max_new_tokens)
        return Ending(stopping, words.text(request.origin_input_ids), words, limits)

    def _rows(self, logits: Tensor, rows: Mapping[int, tuple[Any, Ending]]) -> Tensor:
        verdicts = _verdicts()
        first = sum(_chosen(request) == 0 for request, _ in rows.values())
        _counters().count("stop_on", first, len(rows))
        for row, (request, ending) in rows.items():
            generated = _chosen(request)
            ending.lag = generated - len(request.output_ids)
            new = request.output_ids[ending.seen :]
            verdict = ending.see(new) if len(new) else None
            if verdict is not None:
                verdicts.note(verdict)
            forced = ending.forced(generated)
            if forced is not None:
                logits[row] = -torch.inf
                logits[row, forced] = 0
            if ending.over(generated) and generated >= ending.limits.least:
                why = ending.reason or "the answer has had its tokens"
                request.to_finish = FINISH_MATCHED_STR(f"lil: {why}")
        return logits

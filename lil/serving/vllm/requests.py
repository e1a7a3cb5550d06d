"""What a vLLM server and its requests ask for, for both runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.logger import init_logger

from attention.core import devices
from attention.errors import InvalidValue, check_int
from lil.detectors import Answer
from lil.detectors.budget import Budget
from lil.penalties import Penalty
from lil.serving.ending import Ending, Limits, Words, end_of, log_verdict
from lil.serving.values import (
    ATTENTION,
    CUE,
    FULL,
    Stopping,
    penalty_of,
    require_known,
    stopping_of,
)

#: The part of `--additional-config` that is ours: the same values as in a request.
PART = "lil"
#: The tokens between two looks of V2, and their number where a look waits for the device.
EVERY, SELDOM = "stop_on_every", 25
#: The package of the workers that make layers sparse.
WORKERS = "lil.serving.vllm.sparse."
_LOG = init_logger("vllm.lil")


def config_values(config: VllmConfig) -> Mapping[str, Any]:
    """Our part of what the server was started with."""
    more = config.additional_config
    values = more.get(PART, {}) if isinstance(more, Mapping) else {}
    if not isinstance(values, Mapping):
        raise InvalidValue(f"additional_config.{PART}", values, "a table of values")
    return values


def server_values(config: VllmConfig) -> Mapping[str, Any]:
    """The same, without drafts, unknown values, and a method that lacks our worker."""
    if config.speculative_config is not None:
        allowed = "no speculative decoding: drafts are scored before it is known which are kept"
        raise InvalidValue("speculative_config", config.speculative_config.method, allowed)
    values = config_values(config)
    require_known(values, ("stop_on", "stop_on_tokens", CUE, EVERY, ATTENTION))
    worker = str(config.parallel_config.worker_cls) if ATTENTION in values else WORKERS
    if not worker.startswith(WORKERS):
        allowed = f"--worker-cls {WORKERS}worker.CPUWorker with it, not {worker}"
        raise InvalidValue(f"additional_config.{PART}.{ATTENTION}", values[ATTENTION], allowed)
    return values


def request_values(params: Any) -> Mapping[str, Any]:
    """The extra values of a request; params are None where it generates nothing."""
    return getattr(params, "extra_args", None) or {}


def in_full(params: Any) -> bool:
    """Whether a request asks for full attention."""
    return bool(request_values(params).get(ATTENTION) == FULL)


def penalty_for(
    kind: type[Penalty], params: SamplingParams, default: Penalty | None = None
) -> Penalty | None:
    """The penalty that a request asks for; None where it would change nothing."""
    penalty = penalty_of(kind, request_values(params), default)
    return None if penalty is None or penalty.neutral else penalty


def words_of(config: VllmConfig) -> Words:
    """The served model's tokenizer."""
    model = config.model_config
    return Words(
        AutoTokenizer.from_pretrained(
            model.tokenizer,
            revision=model.tokenizer_revision,
            trust_remote_code=model.trust_remote_code,
        )
    )


class PenaltyServer:
    """Makes the penalty of each request."""

    def __init__(self, kind: type[Penalty], config: VllmConfig) -> None:
        self._kind, self._default = kind, penalty_of(kind, server_values(config))
        self._words = words_of(config) if kind.reads_tokens else None
        if self._words is not None:
            self._words.bound(kind())  # no request that runs can be refused any more

    def penalty(self, params: SamplingParams) -> Penalty | None:
        """The penalty that a request asks for; None where it would change nothing."""
        penalty = penalty_for(self._kind, params, self._default)
        return penalty if penalty is None or self._words is None else self._words.bound(penalty)


def check_stopping(params: SamplingParams) -> None:
    """Refuse what cannot be done, since a request that runs cannot be refused any more."""
    values = request_values(params)
    requested = stopping_of(values)
    # The server's own detectors are not known here: `stop_on_token` is checked with any.
    stopping = requested or stopping_of({**values, "stop_on": "cycle"})
    assert stopping is not None
    # The engine fills in the end of text once it has admitted a request.
    end = end_of(stopping, None if params.ignore_eos else 0, params.stop_token_ids or ())
    if requested is None:
        return
    if params.structured_outputs is not None:
        allowed = "nothing, where a grammar decides which tokens may follow"
        raise InvalidValue("stop_on", values["stop_on"], allowed)
    if end is None:
        allowed = "nothing, unless some token ends the request: ignore_eos, no stop_token_ids"
        raise InvalidValue("stop_on", values["stop_on"], allowed)


class StoppingServer:
    """Makes the `Ending` of each request, and notes verdicts."""

    def __init__(self, config: VllmConfig) -> None:
        values = dict(server_values(config))
        every = values.pop(EVERY, None)
        self._every = None if every is None else check_int(EVERY, every, 1)
        self._cue = values.pop(CUE, Answer.cue)
        self._default = stopping_of(values, cue=self._cue, trusted=True)
        self._longest = config.model_config.max_model_len
        self._words = words_of(config)
        # Any request may ask for an answer, and none can be refused once it runs.
        self._words.check([Budget(tokens=1, on_stop=Answer(cue=self._cue))])
        if self._default is not None:
            self._words.check(self._default.detectors)

    def every(self, device: torch.device) -> int:
        """Tokens between two looks at what this device holds; on a host no look waits."""
        if self._every is not None:
            return self._every
        return 1 if devices.is_synchronous(device) else SELDOM

    def stopping(self, params: SamplingParams) -> Stopping | None:
        """When a request whose values were checked is to be ended; None: never.

        The server's own detectors leave requests alone that cannot be ended.
        """
        stopping = stopping_of(request_values(params), self._default, cue=self._cue)
        if stopping is None:
            return None
        end = end_of(stopping, params.eos_token_id, params.stop_token_ids or ())
        return stopping if end is not None and params.structured_outputs is None else None

    def ending(self, stopping: Stopping, params: SamplingParams, prompt: Sequence[int]) -> Ending:
        """What watches a request with this prompt, its tokens before the first generated one."""
        eos, stops = params.eos_token_id, params.stop_token_ids or ()
        ends = frozenset(token for token in (eos, *stops) if token is not None)
        room = self._longest - len(prompt)
        most = room if params.max_tokens is None else min(room, params.max_tokens)
        limits = Limits(ends, end_of(stopping, eos, stops), params.min_tokens, most)
        return Ending(stopping, self._words.text(prompt), self._words, limits)

    def see(self, ending: Ending, tokens: Sequence[int], known: int = 0) -> None:
        """Show a request its next tokens, and note a verdict behind those `known` before."""
        verdict = ending.see(tokens)
        if verdict is not None and ending.seen > known:
            log_verdict(_LOG, verdict)

"""What a vLLM request and server say of penalties and of stopping, for both runners."""

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
from lil.serving.counters import Counters
from lil.serving.ending import Ending, Limits, Words, end_of
from lil.serving.keys import CUE, require_known
from lil.serving.values import Stopping, penalty_of, stopping_of
from lil.serving.verdict_log import VerdictLog
from lil.serving.vllm.values import ATTENTION, ATTENTION_FILE, PART, check_worker

#: Where verdicts are written, a line each; tokens between two looks of the V2 runner.
FILE, EVERY = "stop_on_file", "stop_on_every"
#: What the latter is where a look waits for the device, unless the server was told otherwise.
SELDOM = 25


def served(config: VllmConfig) -> Mapping[str, Any]:
    """What the server was started with.

    Raises:
        InvalidValue: no table, or a value that nobody reads.
    """
    more = config.additional_config
    given = more.get(PART, {}) if isinstance(more, Mapping) else {}
    if not isinstance(given, Mapping):
        raise InvalidValue(f"additional_config.{PART}", given, "a table of values")
    require_known(given, ("stop_on", "stop_on_tokens", CUE, FILE, EVERY, ATTENTION, ATTENTION_FILE))
    if ATTENTION in given or ATTENTION_FILE in given:
        check_worker(given, config.parallel_config.worker_cls)
    return given


def require_plain(config: VllmConfig) -> None:
    """Refuse speculative decoding, for what does not tell a draft's row from the next one's.

    Raises:
        InvalidValue: it is on.
    """
    if config.speculative_config is not None:
        allowed = "no speculative decoding: drafts are scored before it is known which are kept"
        raise InvalidValue("speculative_config", config.speculative_config.method, allowed)


def counters_of(config: VllmConfig) -> Counters:
    """The counters of a worker: of those that share a model, the first tells."""
    parallel = config.parallel_config
    return Counters(parallel.rank % parallel.tensor_parallel_size == 0)


class PenaltyValues:
    """The values of one penalty.

    Args:
        kind: its class.
    """

    def __init__(self, kind: type[Penalty]) -> None:
        self.kind = kind

    def default(self, config: VllmConfig) -> Penalty | None:
        """What requests get that say nothing."""
        return penalty_of(self.kind, served(config))

    def of(self, params: SamplingParams, default: Penalty | None = None) -> Penalty | None:
        """What a request asks for; None where there is nothing to do.

        Raises:
            InvalidValue: an unknown value, or one that the penalty refuses.
        """
        penalty = penalty_of(self.kind, params.extra_args or {}, default)
        return None if penalty is None or penalty.neutral else penalty


class StoppingValues:
    """The values of `stop_on`."""

    def check(self, params: SamplingParams) -> None:
        """Refuse what cannot be done, so that nothing has to be refused once a request runs.

        Raises:
            InvalidValue: see `stopping_of` and `end_of`; no token that ends the request; a grammar,
                which what is forced would break.
        """
        given = params.extra_args or {}
        # What the server was started with is not known here: a token is checked against any.
        stopping = stopping_of(given) or stopping_of({**given, "stop_on": "cycle"})
        assert stopping is not None
        # The engine fills in the end of text once it has admitted a request.
        end = end_of(stopping, None if params.ignore_eos else 0, params.stop_token_ids or ())
        if "stop_on" not in given or stopping_of(given) is None:
            return
        if params.structured_outputs is not None:
            allowed = "nothing, where a grammar decides which tokens may follow"
            raise InvalidValue("stop_on", given["stop_on"], allowed)
        if end is None:
            allowed = "nothing, unless some token ends the request: ignore_eos, no stop_token_ids"
            raise InvalidValue("stop_on", given["stop_on"], allowed)

    def server(self, config: VllmConfig) -> StoppingServer:
        """What is the same for all requests of a server."""
        return StoppingServer(config)


class StoppingServer:
    """Makes the `Ending` of each request, and notes verdicts.

    Args:
        config: of the server.
        forces: whether requests are ended by a token that is forced.

    Raises:
        InvalidValue: values that cannot be used, or a tokenizer without bytes for its tokens.
    """

    def __init__(self, config: VllmConfig, forces: bool = True) -> None:
        if forces:
            require_plain(config)
        self.forces = forces
        given = dict(served(config))
        self.counters = counters_of(config)
        self.verdicts = VerdictLog(init_logger("vllm.lil"), self.counters, given.pop(FILE, None))
        every = given.pop(EVERY, None)
        self._every = None if every is None else check_int(EVERY, every, 1)
        self._cue = given.pop(CUE, Answer.cue)
        self._default = stopping_of(given, cue=self._cue, trusted=True)
        model = config.model_config
        self._longest = model.max_model_len
        self._words = Words(
            AutoTokenizer.from_pretrained(
                model.tokenizer,
                revision=model.tokenizer_revision,
                trust_remote_code=model.trust_remote_code,
            )
        )
        # What any request may ask for has to be possible, since here none can be refused any more.
        self._words.check([Budget(tokens=1, on_stop=Answer(cue=self._cue))])
        if self._default is not None:
            self._words.check(self._default.detectors)
            for detector in self._default.detectors if not forces else ():
                if not detector.action.ends:
                    allowed = "stop: a scheduler forces no tokens, lil.serving.vllm:StopOn does"
                    raise InvalidValue("on_stop", detector.action.name, allowed)

    def every(self, device: torch.device) -> int:
        """Tokens between two looks of a runner that keeps them on a device.

        Where they lie in the host's memory a look waits for nothing, and each is looked at.
        """
        if self._every is not None:
            return self._every
        return 1 if devices.is_synchronous(device) else SELDOM

    def stopping(self, params: SamplingParams) -> Stopping | None:
        """When a request whose values were checked is to be ended; None: never.

        What the server was started with leaves those alone that it cannot end.
        """
        stopping = stopping_of(params.extra_args or {}, self._default, cue=self._cue)
        if stopping is None:
            return None
        end = end_of(stopping, params.eos_token_id, params.stop_token_ids or ())
        forcible = end is not None and params.structured_outputs is None
        return stopping if forcible or not self.forces else None

    def ending(self, stopping: Stopping, params: SamplingParams, prompt: Sequence[int]) -> Ending:
        """What watches a request.

        Args:
            stopping: when it is to be ended.
            params: of the request.
            prompt: its tokens before the first generated one.
        """
        eos, stops = params.eos_token_id, params.stop_token_ids or ()
        ends = frozenset(one for one in (eos, *stops) if one is not None)
        room = self._longest - len(prompt)
        most = room if params.max_tokens is None else min(room, params.max_tokens)
        limits = Limits(ends, end_of(stopping, eos, stops), params.min_tokens, most)
        return Ending(stopping, self._words.text(prompt), self._words, limits)

    def see(self, ending: Ending, tokens: Sequence[int], known: int = 0) -> None:
        """Show a request its next tokens, and note what comes of them.

        Args:
            ending: what watches it.
            tokens: as many as are looked at together.
            known: generated tokens that it had been shown before its engine put it back.
        """
        verdict = ending.see(tokens)
        if verdict is not None and ending.seen > known:
            self.verdicts.note(verdict)

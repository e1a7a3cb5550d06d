"""What a vLLM request and server say of penalties and of stopping, for both runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.logger import init_logger

from attention.errors import InvalidValue, check_int
from lil.detectors import Answer
from lil.detectors.budget import Budget
from lil.penalties import Penalty
from lil.serving.ending import Ending, Limits, Words, limits_of
from lil.serving.told import Told
from lil.serving.values import (
    CUE,
    STOPPING,
    Stopping,
    penalty_of,
    require_known,
    stopping_of,
)

#: The part of `--additional-config` that is ours: the same values as in a request.
PART = "lil"

#: Where verdicts are written, a line each; tokens between two looks of the V2 runner.
FILE, EVERY = "stop_on_file", "stop_on_every"


def served(config: VllmConfig) -> Mapping[str, Any]:
    """What the server was started with.

    Raises:
        InvalidValue: no table, or a value that nobody reads.
    """
    more = config.additional_config
    given = more.get(PART, {}) if isinstance(more, Mapping) else {}
    if not isinstance(given, Mapping):
        raise InvalidValue(f"additional_config.{PART}", given, "a table of values")
    own = (*STOPPING, CUE, FILE, EVERY)
    penalties = ("lz", "dry", "presence_window")
    rest = {key: given[key] for key in given if not key.startswith(penalties)}
    require_known(rest, own)
    if config.speculative_config is not None:
        allowed = "no speculative decoding: drafts are scored before it is known which are kept"
        raise InvalidValue("speculative_config", config.speculative_config.method, allowed)
    return given


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
        """Refuse what cannot be done.

        Raises:
            InvalidValue: see `stopping_of` and `limits_of`; a grammar, which what is forced breaks.
        """
        stopping = stopping_of(params.extra_args or {})
        if stopping is not None:
            _limits(stopping, params, 1)

    def server(self, config: VllmConfig) -> StoppingServer:
        """What is the same for all requests of a server."""
        return StoppingServer(config)


def _limits(stopping: Stopping, params: SamplingParams, most: int) -> Limits:
    if params.structured_outputs is not None:
        allowed = "nothing, where a grammar decides which tokens may follow"
        raise InvalidValue("stop_on", stopping.detectors[0].name, allowed)
    stops = params.stop_token_ids or ()
    # The engine fills this in once it has admitted a request; before, only `ignore_eos` is known.
    eos = params.eos_token_id if params.eos_token_id is not None or params.ignore_eos else -1
    return limits_of(stopping, eos, stops, params.min_tokens, most)


class StoppingServer:
    """Makes the `Ending` of each request, and notes verdicts.

    Args:
        config: of the server.

    Raises:
        InvalidValue: values that cannot be used, or a tokenizer without bytes for its tokens.
    """

    def __init__(self, config: VllmConfig) -> None:
        given = dict(served(config))
        self.told = Told(init_logger("vllm.lil"), given.pop(FILE, None))
        self.every = check_int(EVERY, given.pop(EVERY, 25), 1)
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

    def stopping(self, params: SamplingParams) -> Stopping | None:
        """When a request is to be ended; None: never."""
        return stopping_of(params.extra_args or {}, self._default, cue=self._cue)

    def ending(self, stopping: Stopping, params: SamplingParams, prompt: Sequence[int]) -> Ending:
        """What watches a request."""
        room = self._longest - len(prompt)
        most = room if params.max_tokens is None else min(room, params.max_tokens)
        limits = _limits(stopping, params, most)
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
            self.told.note(verdict)

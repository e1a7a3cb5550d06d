"""Penalties and stopping in vLLM, given to it by name.

    vllm serve MODEL --logits-processors lil.serving.vllm:LZPenalty lil.serving.vllm:StopOn

vLLM has two runners, and each takes processors of its own kind alone. These classes are both: which
runner asks is known when it makes the object, and it gets the one that is meant for it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attention.errors import InvalidValue
from lil import penalties

try:
    import vllm
except ImportError as error:
    raise InvalidValue("vllm", None, "an installed vLLM, see docs/serving.md") from error
try:
    from vllm.v1.sample import logits_processor as runner_1
    from vllm.v1.worker.gpu.sample import logits_processor as runner_2

    from lil.serving.vllm.requests import PenaltyValues, StoppingValues
except ImportError as error:
    allowed = f"0.32 or newer, for whose processors these are made ({error})"
    raise InvalidValue("vllm", vllm.__version__, allowed) from error

__all__ = ["DRYPenalty", "LZPenalty", "PresenceWindowPenalty", "StopOn"]


class _Processor:
    """What vLLM is given: the object is that of the runner that makes it.

    Args:
        vllm_config: of the engine.
        runner: `(device, is_pin_memory)` from the V1 runner, `(req_states,)` from V2.
    """

    def __new__(cls, vllm_config: Any, *runner: Any) -> Any:
        if len(runner) not in (1, 2):
            allowed = "those of the V1 runner (device, is_pin_memory) or of V2 (req_states)"
            raise InvalidValue("arguments", runner, f"{allowed}: another version of vLLM?")
        return cls._made(vllm_config, *runner)

    @classmethod
    def _made(cls, vllm_config: Any, *runner: Any) -> Any:
        raise NotImplementedError


class _Penalty(_Processor):
    values: ClassVar[PenaltyValues]

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse values that cannot be used, as HTTP 400 where they came over HTTP.

        Raises:
            InvalidValue: an unknown value, or one that the penalty refuses.
        """
        cls.values.of(sampling_params)

    @classmethod
    def _made(cls, vllm_config: Any, *runner: Any) -> Any:
        # Imported where an engine asks: the process that checks requests needs none of it.
        from lil.serving.vllm import v1, v2

        kind = v1.PenaltyProcessor if len(runner) == 2 else v2.PenaltyProcessor
        return kind(cls.values, vllm_config, *runner)


class LZPenalty(_Penalty):
    """The LZ penalty (`lil.LZPenalty`) of requests with `lz` or `lz_alpha`, `lz_formula` and so on.

    Raises:
        InvalidValue: `additional_config` holds what cannot be used, or V1 decodes drafts.
    """

    values = PenaltyValues(penalties.LZPenalty)


class DRYPenalty(_Penalty):
    """DRY (`lil.penalties.DRYPenalty`) of requests with `dry` or `dry_multiplier` and so on.

    Raises:
        InvalidValue: `additional_config` holds what cannot be used, or V1 decodes drafts.
    """

    values = PenaltyValues(penalties.DRYPenalty)


class PresenceWindowPenalty(_Penalty):
    """`lil.penalties.PresenceWindowPenalty` of requests with `presence_window` and so on.

    Raises:
        InvalidValue: `additional_config` holds what cannot be used, or V1 decodes drafts.
    """

    values = PenaltyValues(penalties.PresenceWindowPenalty)


class StopOn(_Processor):
    """Ends requests with `stop_on`, or their thinking, when a detector fires.

    V1 sees every token before the next is chosen, so nothing is late. V2 copies what is new from
    the device every `stop_on_every` tokens and may be as many late.

    Raises:
        InvalidValue: `additional_config` holds what cannot be used, the tokenizer has no bytes for
            its tokens or not the words of the cue, or drafts are decoded.
    """

    values = StoppingValues()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse values that cannot be used, as HTTP 400 where they came over HTTP.

        Raises:
            InvalidValue: an unknown value, detector or parameter, or a request without an end.
        """
        cls.values.check(sampling_params)

    @classmethod
    def _made(cls, vllm_config: Any, *runner: Any) -> Any:
        from lil.serving.vllm import v1, v2

        kind = v1.StoppingProcessor if len(runner) == 2 else v2.StoppingProcessor
        return kind(cls.values, vllm_config, *runner)


for _processor in (LZPenalty, DRYPenalty, PresenceWindowPenalty, StopOn):
    runner_1.LogitsProcessor.register(_processor)
    runner_2.LogitsProcessor.register(_processor)

"""Penalties and stopping in vLLM, given to it by name.

    vllm serve MODEL --logits-processors lil.serving.vllm:LZPenalty lil.serving.vllm:StopOn

vLLM has two runners, and each takes processors of its own kind alone. These classes are both: V1
makes an object with `(config, device, is_pin_memory)`, V2 with `(config, req_states)`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attention.errors import InvalidValue
from lil import penalties
from lil.penalties import Penalty

#: The releases whose internal classes are extended here and in `lil.serving.vllm.sparse`.
SUPPORTED = "0.32"

try:
    import vllm
except ImportError as error:
    raise InvalidValue("vllm", None, "an installed vLLM, see docs/serving.md") from error
if not vllm.__version__.startswith(f"{SUPPORTED}."):
    allowed = f"{SUPPORTED}.*: other releases may have other internals (pip install 'vllm"
    raise InvalidValue("vllm", vllm.__version__, f"{allowed}=={SUPPORTED}.*')")

from vllm.v1.sample import logits_processor as runner_1  # noqa: E402
from vllm.v1.worker.gpu.sample import logits_processor as runner_2  # noqa: E402

from lil.serving.vllm.requests import check_stopping, penalty_for  # noqa: E402

__all__ = ["DRYPenalty", "LZPenalty", "NoWaitPenalty", "PresenceWindowPenalty", "StopOn"]


class _Penalty:
    kind: ClassVar[type[Penalty]]

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse values that cannot be used, as HTTP 400 where they came over HTTP."""
        penalty_for(cls.kind, sampling_params)

    def __new__(cls, vllm_config: Any, *runner: Any) -> Any:
        # Imported where an engine asks: the process that checks requests needs none of it.
        from lil.serving.vllm.runners import PenaltyProcessor1, PenaltyProcessor2

        processor = PenaltyProcessor1 if len(runner) == 2 else PenaltyProcessor2
        return processor(cls.kind, vllm_config, *runner)


class LZPenalty(_Penalty):
    """The LZ penalty (`lil.LZPenalty`) of requests with `lz` or `lz_alpha` and so on."""

    kind = penalties.LZPenalty


class DRYPenalty(_Penalty):
    """DRY (`lil.penalties.DRYPenalty`) of requests with `dry` or `dry_multiplier` and so on."""

    kind = penalties.DRYPenalty


class PresenceWindowPenalty(_Penalty):
    """`lil.penalties.PresenceWindowPenalty` of requests with `presence_window` and so on."""

    kind = penalties.PresenceWindowPenalty


class NoWaitPenalty(_Penalty):
    """NoWait (`lil.penalties.NoWaitPenalty`), with its own words, of requests with `nowait`."""

    kind = penalties.NoWaitPenalty


class StopOn:
    """Ends requests with `stop_on`, or their thinking, when a detector fires.

    V1 sees every token before the next is chosen, so a verdict is never late. V2 copies new tokens
    from the device every `stop_on_every` tokens and may be as many late.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse values that cannot be used, as HTTP 400 where they came over HTTP."""
        check_stopping(sampling_params)

    def __new__(cls, vllm_config: Any, *runner: Any) -> Any:
        from lil.serving.vllm.runners import StoppingProcessor1, StoppingProcessor2

        processor = StoppingProcessor1 if len(runner) == 2 else StoppingProcessor2
        return processor(vllm_config, *runner)


for _processor in (LZPenalty, DRYPenalty, PresenceWindowPenalty, NoWaitPenalty, StopOn):
    runner_1.LogitsProcessor.register(_processor)
    runner_2.LogitsProcessor.register(_processor)

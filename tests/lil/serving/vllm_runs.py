"""The same prompts through vLLM and through `lil.decode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lil
from experiments.reasoner import checkpoint_path, problem

if TYPE_CHECKING:
    import vllm

PLACES, CAP = 8, 600
PROCESSORS = [
    f"lil.serving.vllm:{name}"
    for name in ("LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "StopOn")
]
PROMPTS = [
    problem(level, "test", i).prompt
    for i in range(22)
    for level in ("easy", "medium", "hard")
][:64]  # fmt: skip


def engine(**more: Any) -> vllm.LLM:
    """A vLLM of eight places with the reasoner."""
    given = {
        "dtype": "float32",
        "max_num_seqs": PLACES,
        "enforce_eager": True,
        "logits_processors": PROCESSORS,
        "disable_log_stats": True,
    }
    from vllm import LLM

    return LLM(str(checkpoint_path()), **given | more)


def ours(reasoner: Any, prompts: Sequence[str], **options: Any) -> list[list[int]]:
    traces = lil.decode(*reasoner, prompts, batch_size=16, **{"max_new_tokens": CAP} | options)
    return [list(trace.new_ids) for trace in traces]


def theirs(llm: vllm.LLM, prompts: Sequence[str], extra: Sequence[Any], **more: Any) -> list[Any]:
    from vllm import SamplingParams

    given = {"temperature": 0, "max_tokens": CAP} | more
    params = [SamplingParams(extra_args=one, **given) for one in extra]
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in outputs]

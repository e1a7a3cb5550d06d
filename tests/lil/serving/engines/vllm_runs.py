"""The same prompts through vLLM and through `lil.decode`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lil
from experiments.reasoner import checkpoint_path, problem

if TYPE_CHECKING:
    import vllm

#: `LONG=1 scripts/test_vllm`: all prompts and long texts under sparse attention, some half an hour.
LONG = os.environ.get("LONG") == "1"
PLACES, CAP, SHORT = 8, 600, 160
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
    """A vLLM of eight places with the reasoner, in this process: processes that wait would spin."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    given = {
        "dtype": "float32",
        "max_num_seqs": PLACES,
        "enforce_eager": True,
        "logits_processors": PROCESSORS,
        "disable_log_stats": True,
        "distributed_executor_backend": "uni",
        "gpu_memory_utilization": 0.1,  # of the machine's memory, which it wants to see free
        "kv_cache_memory_bytes": 2**29,
    }
    from vllm import LLM

    return LLM(str(checkpoint_path()), **given | more)


def ours(reasoner: Any, prompts: Sequence[str], **options: Any) -> list[list[int]]:
    given = {"max_new_tokens": CAP} | options
    traces = lil.decode(*reasoner, prompts, batch_size=16, **given)
    return [with_end(trace, reasoner[1].eos_token_id, given["max_new_tokens"]) for trace in traces]


def with_end(trace: lil.Trace, end: int, cap: int) -> list[int]:
    """A trace as an engine has it: where decode cuts, a request is given its end."""
    kept = list(trace.new_ids)
    return kept + [end] * (trace.finish != "eos" and len(kept) < cap)


def theirs(llm: vllm.LLM, prompts: Sequence[str], extra: Sequence[Any], **more: Any) -> list[Any]:
    from vllm import SamplingParams

    given = {"temperature": 0, "max_tokens": CAP} | more
    params = [SamplingParams(extra_args=one, **given) for one in extra]
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in outputs]

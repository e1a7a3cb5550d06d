"""The same prompts through an engine and through `lil.decode`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lil
from experiments.reasoner import checkpoint_path, problem

if TYPE_CHECKING:
    import vllm

#: Set before a release: every policy, more prompts, longer texts.
LONG = os.environ.get("LONG") == "1"
only_long = pytest.mark.skipif(not LONG, reason="LONG=1 runs it")
PLACES, CAP, SHORT = 8, 600, 160
PROCESSORS = [
    f"lil.serving.vllm:{name}"
    for name in ("LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "NoWaitPenalty", "StopOn")
]
WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"
CHECKS = "lil.serving.vllm.sparse.processor:Attention"
PROMPTS = [
    problem(level, "test", i).prompt
    for i in range(22)
    for level in ("easy", "medium", "hard")
][:64]  # fmt: skip


def engine(**more: Any) -> vllm.LLM:
    """A vLLM of eight places with the reasoner, in this process: processes that wait would spin."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    options = {
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

    return LLM(str(checkpoint_path()), **options | more)


def sparse(text: str, **more: Any) -> vllm.LLM:
    """One whose layers are sparse."""
    options: dict[str, Any] = {
        "worker_cls": WORKER,
        "block_size": 32,
        "logits_processors": [*PROCESSORS, CHECKS],
        "additional_config": {"lil": {"attention": text}},
        "enable_prefix_caching": True,
    }
    return engine(**options | more)


def shut(llm: vllm.LLM) -> None:
    """End an engine."""
    llm.llm_engine.engine_core.shutdown()


def decoded(reasoner: Any, prompts: Sequence[Any], **options: Any) -> list[list[int]]:
    """The tokens of `lil.decode`, as an engine has them."""
    options = {"max_new_tokens": CAP} | options
    traces = lil.decode(*reasoner, prompts, batch_size=16, **options)
    return [
        with_end(trace, reasoner[1].eos_token_id, options["max_new_tokens"]) for trace in traces
    ]


def with_end(trace: lil.Trace, end: int, cap: int) -> list[int]:
    """A trace's tokens, with the end that an engine forces where decode cuts."""
    ids = list(trace.new_ids)
    return ids + [end] * (trace.finish != "eos" and len(ids) < cap)


def generated(llm: vllm.LLM, prompts: Sequence[Any], values: Any, **more: Any) -> list[Any]:
    """The tokens of vLLM; `values` of each request."""
    from vllm import SamplingParams

    options = {"temperature": 0, "max_tokens": CAP} | more
    params = [SamplingParams(extra_args=extra, **options) for extra in values]
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def answer_of(program: str, request: Any, **environment: str) -> Any:
    """What a program of this folder answers through JSON: an engine in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program))],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)

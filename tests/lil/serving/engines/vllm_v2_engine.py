"""vLLM's V2 runner on a CPU, its Triton kernels interpreted; requests come and answers go as JSON.

Run as a program: which runner there is, and whether Triton is there, is settled when vLLM is
imported, and other tests want the other one.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints must not stand before the answers
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from triton.backends import backends

    # vLLM asks for a backend of CPUs; the interpreter takes its place.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    from engine_runs import engine

    request = json.load(sys.stdin)
    import vllm

    llm = engine(**request["engine"], disable_log_stats=False)
    assert llm.llm_engine.vllm_config.use_v2_model_runner
    params = [vllm.SamplingParams(temperature=0, **options) for options in request["params"]]
    outputs = llm.generate(request["prompts"], params, use_tqdm=False)
    metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    json.dump({"tokens": tokens, "preemptions": metrics["vllm:num_preemptions"]}, answers)
    answers.flush()


if __name__ == "__main__":
    main()

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
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints must not stand before the answers
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from triton.backends import backends

    # vLLM asks for a backend of CPUs; the interpreter takes its place.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    from vllm_runs import engine

    asked = json.load(sys.stdin)
    import vllm

    llm = engine(**asked["engine"])
    assert llm.llm_engine.vllm_config.use_v2_model_runner
    params = [vllm.SamplingParams(temperature=0, **one) for one in asked["params"]]
    outputs = [one.outputs[0] for one in llm.generate(asked["prompts"], params, use_tqdm=False)]
    drafts = asked["engine"].get("speculative_config")
    counted = {one.name: getattr(one, "value", 0) for one in (llm.get_metrics() if drafts else ())}
    names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
    tokens = [list(one.token_ids) for one in outputs]
    json.dump({"tokens": tokens, "drafted": [counted.get(name, 0) for name in names]}, told)
    told.flush()


if __name__ == "__main__":
    main()

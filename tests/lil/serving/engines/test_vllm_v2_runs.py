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
#: Values of a request, and the same of `lil.decode`; a budget of 25 is at a look's token.
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


@pytest.mark.parametrize("every", [1, 25])
def test_tokens_are_those_of_decode(reasoner: Any, every: int) -> None:
    """Side by side, more requests than places, and prompts in pieces of 64 tokens."""
    N = 2 * len(SERVED) if every == 1 else len(SERVED)
    # Unless it is told otherwise, it looks at every token where that waits for nothing.
    config = {} if every == 1 else {"additional_config": {"lil": {"stop_on_every": every}}}
    work = {
        "engine": {"max_num_batched_tokens": 64, **config},
        "prompts": PROMPTS[:N],
        "params": [
            {"max_tokens": TOKENS, "extra_args": SERVED[i % len(SERVED)][0]} for i in range(N)
        ],
    }
    found = answer_of("vllm_v2_engine.py", work)
    plain = decoded(reasoner, PROMPTS[:N], max_new_tokens=TOKENS)
    for first, (_, options) in enumerate(SERVED):
        some = slice(first, N, len(SERVED))
        assert found[some] == decoded(reasoner, PROMPTS[some], max_new_tokens=TOKENS, **options)
    assert sum(a != b for a, b in zip(found, plain, strict=True)) >= N // 2

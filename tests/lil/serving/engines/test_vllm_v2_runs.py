"""vLLM's V2 runner itself, on a CPU with its Triton kernels interpreted.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from engine_programs import answered
from vllm_runs import LONG, PROCESSORS, PROMPTS, SHORT, ours, with_end

import lil
from experiments.reasoner import checkpoint_path
from lil.detectors import Answer
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty, RepetitionPenalty

pytestmark = pytest.mark.slow

LOOPS = RepetitionPenalty(penalty=0.5, include_prompt=True)
#: Kernels that are interpreted take a second for a dozen tokens: few requests, but with LONG=1.
MOST, N = (300, 8) if LONG else (220, 4)


def v2(prompts: Sequence[str], params: Sequence[Any], **engine: Any) -> list[list[int]]:
    """Tokens of prompts, by an engine of their own."""
    found: list[list[int]] = told_of(prompts, params, **engine)["tokens"]
    return found


def told_of(prompts: Sequence[str], params: Sequence[Any], **engine: Any) -> dict[str, Any]:
    """Tokens of prompts, and how many drafts there were and were kept."""
    asked = {"engine": engine, "prompts": list(prompts), "params": list(params)}
    told: dict[str, Any] = answered("vllm_v2_engine.py", asked)
    return told


PENALTIES: list[tuple[dict[str, Any] | None, Penalty | None]] = [
    ({"lz_alpha": 1.5}, lil.LZPenalty(alpha=1.5)),
    ({"lz_alpha": 1.5, "lz_formula": "printed"}, lil.LZPenalty(alpha=1.5, formula="printed")),
    ({"lz_alpha": 1.5, "lz_formula": "rate"}, lil.LZPenalty(alpha=1.5, formula="rate")),
    ({"dry_multiplier": 2}, DRYPenalty(multiplier=2)),
    ({"presence_window_strength": 20}, PresenceWindowPenalty(strength=20)),
    (None, None),
]


def test_penalties_are_those_of_decode(reasoner):
    """Side by side, more requests than places, and prompts in pieces of 64 tokens."""
    prompts, kinds = PROMPTS[:12], len(PENALTIES)
    params = [{"max_tokens": SHORT, "extra_args": PENALTIES[i % kinds][0]} for i in range(12)]
    found = v2(prompts, params, max_num_batched_tokens=64)
    plain = ours(reasoner, prompts, max_new_tokens=SHORT)
    changed = 0
    for first, (_, penalty) in enumerate(PENALTIES):
        chosen = [] if penalty is None else [penalty]
        own = ours(reasoner, prompts[first::kinds], penalties=chosen, max_new_tokens=SHORT)
        assert found[first::kinds] == own
        changed += sum(a != b for a, b in zip(own, plain[first::kinds], strict=True))
    assert changed > 6


def test_penalties_are_those_of_decode_under_drafts(reasoner):
    """Of the model itself, which knows of no penalty: most are kept, and many are not."""
    path = str(checkpoint_path())
    drafts = {"method": "draft_model", "model": path, "num_speculative_tokens": 3}
    both = ({"lz_alpha": 1, "lz_include_prompt": "on"}, lil.LZPenalty(alpha=1, include_prompt=True))
    kinds = [*PENALTIES, both]
    params = [{"max_tokens": SHORT, "extra_args": extra} for extra, _ in kinds]
    told = told_of(
        PROMPTS[: len(kinds)],
        params,
        speculative_config=drafts,
        logits_processors=[name for name in PROCESSORS if not name.endswith("StopOn")],
        disable_log_stats=False,
        max_num_seqs=4,
    )
    for at, (_, penalty) in enumerate(kinds):
        chosen = [] if penalty is None else [penalty]
        own = ours(reasoner, PROMPTS[at : at + 1], penalties=chosen, max_new_tokens=SHORT)
        assert told["tokens"][at : at + 1] == own
    drafted, kept = told["drafted"]
    assert 0.3 * drafted < kept < 0.95 * drafted


WATCHED = {
    "guardian(f=100)": lil.Guardian(f=100),
    "cycle": lil.Cycle(),
    "recurrence": lil.Recurrence(),
}


def late(reasoner: Any, every: int) -> dict[str, list[int]]:
    """How many tokens later than in `lil.decode` loops are ended, by detector."""
    prompts = PROMPTS[:N]
    asked = [(name, prompt) for name in WATCHED for prompt in prompts]
    given = {"max_tokens": MOST, "repetition_penalty": 0.5}
    # Unless it is told otherwise, it looks at every token where that waits for nothing.
    told = {} if every == 1 else {"additional_config": {"lil": {"stop_on_every": every}}}
    params = [given | {"extra_args": {"stop_on": name}} for name, _ in asked]
    found = iter(v2([prompt for _, prompt in asked], params, max_num_seqs=16, **told))
    lengths: dict[str, list[int]] = {}
    for name, detector in WATCHED.items():
        traces = lil.decode(
            *reasoner,
            prompts,
            batch_size=16,
            max_new_tokens=MOST,
            penalties=[LOOPS],
            detectors=[detector],
        )
        lengths[name] = []
        for trace in traces:
            tokens = next(found)
            if trace.finish in ("eos", "length"):
                assert tokens == with_end(trace, reasoner[1].eos_token_id, MOST)
            else:
                assert tokens[: len(trace.new_ids)] == list(trace.new_ids)
                lengths[name].append(len(tokens) - len(trace.new_ids) - 1)
    return lengths


@pytest.mark.parametrize("every", [1, 25])
def test_loops_are_ended_where_decode_ends_them_or_at_the_next_look(reasoner, every):
    lengths = late(reasoner, every)
    assert all(lengths.values())
    assert all(0 <= one < every for name in lengths for one in lengths[name])
    assert not any(lengths["guardian(f=100)"])  # it looks at every hundredth token itself
    assert every == 1 or any(lengths["cycle"] + lengths["recurrence"])


def test_thinking_is_ended_and_the_answer_has_its_tokens(reasoner):
    prompts = PROMPTS[:N]
    extra = {"stop_on": "budget(tokens=50):answer", "stop_on_tokens": 30}
    found = v2(prompts, [{"max_tokens": MOST, "extra_args": extra}] * N)
    watch = lil.Budget(tokens=50, on_stop=Answer(tokens=30))
    # A budget of fifty is a look's token.
    assert found == ours(reasoner, prompts, detectors=[watch], max_new_tokens=MOST)

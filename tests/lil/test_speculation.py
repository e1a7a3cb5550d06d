"""Drafts under sparse attention that full attention checks: its tokens, at any price of theirs."""

from __future__ import annotations

from typing import Any

import pytest
from acting_rows import CUE, fires
from penalty_cases import CASES
from penalty_cases import build as penalty
from tiny_models import SIZES, WORDS, build_model, requests_of

import attention
import lil
from attention.errors import InvalidValue
from lil import detectors as actions

PROMPTS = [[5, 6, 7, 8] * 6, [9, 10, 11] * 8, [30, 4] * 3, [1, 2, 3, 4, 5, 6, 7, 8] * 5]
CAPS = [40, 9, 1, 33]
DRAFTERS = {
    "full": attention.get("full"),
    "quest": attention.get("quest", budget=16, page=4, dense_layers=0),
    "quest, one dense layer": attention.get("quest", budget=8, page=4, dense_layers=1),
    "oracle": attention.get("oracle", budget=4),
}


@pytest.fixture(scope="module")
def small() -> Any:
    return build_model("qwen3", seed=3)


def fields(trace: lil.Trace) -> dict[str, Any]:
    """All of a trace but what it cost."""
    names = ("new_ids", "pieces", "finish", "evidence", "curve", "action", "dropped", "positions")
    return {name: getattr(trace, name) for name in names}


def pair(model: Any, tokenizer: Any, drafts: int, backend: Any, **options: Any) -> Any:
    """Traces of full attention, and of a backend's drafts."""
    rows = options.pop("rows", None) or requests_of(PROMPTS, max_new_tokens=CAPS)
    settings = {"batch_size": 3, "check_every": 10} | options
    plain = lil.decode(model, tokenizer, rows, **settings)
    drafted = lil.decode(model, tokenizer, rows, backend=backend, speculate=drafts, **settings)
    return plain, drafted


@pytest.mark.parametrize("drafts", [1, 5, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_output_is_full_attentions(name, drafts, small, tokenizer):
    plain, drafted = pair(small, tokenizer, drafts, DRAFTERS[name])
    assert [fields(trace) for trace in drafted] == [fields(trace) for trace in plain]
    for trace in drafted:
        count = trace.speculation
        if trace.tokens == 1:  # the prompt gave it
            assert count is None
            continue
        assert 0 <= count["accepted"] <= count["drafted"] == drafts * count["rounds"]
        # Each round gives what it keeps and one token more, but where the output ends inside.
        assert trace.tokens - 1 <= count["accepted"] + count["rounds"]
        total = trace.checks[-1].keys_read
        assert total == count["draft_keys"] + count["check_keys"]
        assert trace.keys_read_mean * (trace.tokens - 1) == pytest.approx(trace.checks[-1].read_sum)


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_is_drawn_is_what_full_attention_draws(name, small, tokenizer):
    settings = {"temperature": 1.3, "seed": 4, "top_k": 20, "top_p": 0.9}
    plain, drafted = pair(small, tokenizer, 4, DRAFTERS[name], **settings)
    assert [fields(trace) for trace in drafted] == [fields(trace) for trace in plain]
    rows = requests_of(PROMPTS, max_new_tokens=CAPS)
    other = lil.decode(small, tokenizer, rows, batch_size=3, **settings | {"seed": 5})
    assert [fields(trace) for trace in other] != [fields(trace) for trace in plain]


@pytest.mark.parametrize("name", ["quest", "oracle"])
def test_penalties_see_the_tokens_they_would_see(name, small, tokenizer):
    penalties = [penalty(case) for case in CASES]
    plain, drafted = pair(small, tokenizer, 4, DRAFTERS[name], penalties=penalties)
    assert [fields(trace) for trace in drafted] == [fields(trace) for trace in plain]


STOPS = {
    "guardian": lil.Guardian(f=4, rate=9.0),
    "cycle": lil.Cycle(max_period=4, min_tokens=2, repeats=2, outside=0),
    "budget": lil.Budget(5),
    "answer": fires(6, actions.Answer(cue=CUE, tokens=9)),
    "regenerate": fires(9, actions.Regenerate(cue=CUE, tokens=15), anchor=4),
    "from the first": fires(7, actions.Regenerate(cue=CUE, tokens=12), anchor=0),
    "densify": lil.Budget(6, on_stop="densify"),
}


@pytest.mark.parametrize("name", STOPS)
def test_detectors_stop_and_act_where_they_would(name, small, tokenizer):
    plain, drafted = pair(small, tokenizer, 4, DRAFTERS["quest"], detectors=[STOPS[name]])
    assert [fields(trace) for trace in drafted] == [fields(trace) for trace in plain]
    assert any(trace.finish not in ("eos", "length") or trace.action for trace in plain)


def test_keys_are_those_of_drafts_and_checks(small, tokenizer):
    """By hand, of one row: full attention's drafts read all, a check reads every key once."""
    rows = requests_of(PROMPTS[:1], max_new_tokens=[11])
    (trace,) = lil.decode(small, tokenizer, rows, backend=DRAFTERS["full"], speculate=3)
    heads = SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"]
    prompt, drafts, checks, taken = len(PROMPTS[0]), 0, 0, 1
    while taken < 11:
        seen = prompt + taken - 1
        drafts += sum(seen + n for n in (1, 2, 3))
        checks += seen + 4
        taken += 4
    assert trace.speculation["draft_keys"] == drafts * heads
    assert trace.speculation["check_keys"] == checks * heads
    assert trace.checks[-1].cache_bytes > 0


def test_what_cannot_be_checked_is_refused(small, tokenizer):
    def decode(**options: Any) -> None:
        lil.decode(small, tokenizer, PROMPTS, speculate=2, **options)

    for name in ("h2o", "infllm"):
        with pytest.raises(InvalidValue, match=f"0 under {name}, which cannot take back"):
            decode(backend=attention.get(name, budget=32))
    with pytest.raises(InvalidValue, match="0 with margin"):
        decode(backend=DRAFTERS["quest"], probes=[lil.Margin(below=9.0, end=WORDS[7])])
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(InvalidValue, match="speculate"):
            lil.decode(small, tokenizer, PROMPTS, speculate=wrong)

"""Drafts under sparse attention that full attention checks: its tokens, at any price of theirs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from acting_rows import CUE, fires
from hypothesis import given, settings
from hypothesis import strategies as st
from penalty_cases import CASES
from penalty_cases import build as penalty
from test_waits import CLASSIFIER
from tiny_models import SIZES, WORDS, asked
from transformers import Qwen3Config, Qwen3ForCausalLM

import attention
import lil
from attention import AttentionCache
from attention.errors import InvalidValue
from lil import detectors as actions
from lil.decoding import speculation
from tests.attention.zoo import animal

PROMPTS = [[5, 6, 7, 8] * 6, [9, 10, 11] * 8, [30, 4] * 3, [1, 2, 3, 4, 5, 6, 7, 8] * 5]
CAPS = [40, 9, 1, 33]
DRAFTERS = {
    "full": attention.get("full"),
    "quest": attention.get("quest", budget=16, page=4, dense_layers=0),
    "quest, one dense layer": attention.get("quest", budget=8, page=4, dense_layers=1),
    "oracle": attention.get("oracle", budget=4),
    "infllm": attention.get("infllm", budget=24, block=4),
    "h2o": attention.get("h2o", budget=16),
    "sink": attention.get("sink", budget=12, sinks=2),
}


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(3)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES)).to(torch.float64).eval()


def told(trace: lil.Trace) -> dict[str, Any]:
    """All of a trace but what it cost."""
    names = ("new_ids", "pieces", "finish", "evidence", "curve", "action", "dropped", "positions")
    return {name: getattr(trace, name) for name in names}


def pair(model: Any, tokenizer: Any, drafts: int, backend: Any, **options: Any) -> Any:
    """Traces of full attention, and of a backend's drafts."""
    rows = options.pop("rows", None) or asked(PROMPTS, max_new_tokens=CAPS)
    given = {"batch_size": 3, "check_every": 10} | options
    plain = lil.decode(model, tokenizer, rows, **given)
    drafted = lil.decode(model, tokenizer, rows, backend=backend, speculate=drafts, **given)
    return plain, drafted


@pytest.mark.parametrize("drafts", [1, 2, 5, 16])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_output_is_full_attentions(name, drafts, small, tokenizer):
    plain, drafted = pair(small, tokenizer, drafts, DRAFTERS[name])
    assert [told(one) for one in drafted] == [told(one) for one in plain]
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
@pytest.mark.parametrize("options", [{}, {"top_k": 9}, {"top_p": 0.7}], ids=str)
def test_what_is_drawn_is_what_full_attention_draws(name, options, small, tokenizer):
    given = {"temperature": 1.3, "seed": 4, **options}
    plain, drafted = pair(small, tokenizer, 4, DRAFTERS[name], **given)
    assert [told(one) for one in drafted] == [told(one) for one in plain]
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    other = lil.decode(small, tokenizer, rows, batch_size=3, **given | {"seed": 5})
    assert [told(one) for one in other] != [told(one) for one in plain]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["quest", "infllm", "h2o"])
def test_penalties_see_the_tokens_they_would_see(name, case, small, tokenizer):
    plain, drafted = pair(small, tokenizer, 4, DRAFTERS[name], penalties=[penalty(case)])
    assert [told(one) for one in drafted] == [told(one) for one in plain]


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
    assert [told(one) for one in drafted] == [told(one) for one in plain]
    assert any(one.finish not in ("eos", "length") or one.action for one in plain)


def test_an_end_inside_a_round_is_the_end(small, tokenizer):
    plain, _ = pair(small, tokenizer, 1, DRAFTERS["full"])
    for at in range(3, 12):
        small.generation_config.eos_token_id = plain[0].new_ids[at]
        try:
            ended, drafted = pair(small, tokenizer, 5, DRAFTERS["quest"])
        finally:
            small.generation_config.eos_token_id = None
        assert [told(one) for one in drafted] == [told(one) for one in ended]
        assert ended[0].finish == "eos"


def test_full_attention_accepts_its_own_drafts(small, tokenizer):
    _, drafted = pair(small, tokenizer, 4, DRAFTERS["full"])
    assert all(not one.speculation["rejected"] for one in drafted if one.speculation)


def test_keys_are_those_of_drafts_and_checks(small, tokenizer):
    """By hand, of one row: full attention's drafts read all, a check reads every key once."""
    rows = asked(PROMPTS[:1], max_new_tokens=[11])
    (trace,) = lil.decode(small, tokenizer, rows, backend=DRAFTERS["full"], speculate=3)
    heads = SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"]
    prompt, drafts, checks, given_ = len(PROMPTS[0]), 0, 0, 1
    while given_ < 11:
        seen = prompt + given_ - 1
        drafts += sum(seen + n for n in (1, 2, 3))
        checks += seen + 4
        given_ += 4
    assert trace.speculation["draft_keys"] == drafts * heads
    assert trace.speculation["check_keys"] == checks * heads
    assert trace.checks[-1].cache_bytes > 0


DROPPING = [
    ("h2o", {"budget": 16}), ("h2o", {"budget": 48, "keep_prompt": True}),
    ("sink", {"budget": 12, "sinks": 2}), ("window", {"budget": 9}), ("tova", {"budget": 12}),
    ("snapkv", {"budget": 24}), ("random", {"budget": 12}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), DROPPING, ids=str)
def test_a_drafter_apart_drafts_what_the_method_chooses_behind_the_text(
    name, parameters, small, tokenizer
):
    """Drafts kept are those that `lil.acceptance` counts over full attention's text."""
    backend = attention.get(name, **parameters)
    plain, drafted = pair(small, tokenizer, 1, backend, batch_size=1)
    assert [told(one) for one in drafted] == [told(one) for one in plain]
    for trace, other, read in zip(
        plain, drafted, lil.acceptance(small, plain, backend), strict=True
    ):
        if other.speculation is None:
            continue
        # With one draft a round drafts stand behind the first token and behind each round's last.
        at, kept = 1, 0
        while at < trace.tokens:
            hit = bool(read.chosen[at - 1])
            kept += hit
            at += 1 + hit
        assert other.speculation["accepted"] == kept


def test_a_drafter_apart_holds_its_keys_beside_full_attentions(small, tokenizer):
    rows = asked(PROMPTS[:1], max_new_tokens=[11])
    (plain,), (alone,), (both,) = (
        lil.decode(small, tokenizer, rows, check_every=1, **options)
        for options in ({}, {"backend": DRAFTERS["sink"]},
                        {"backend": DRAFTERS["sink"], "speculate": 3})
    )  # fmt: skip
    assert both.cache_bytes_peak > plain.cache_bytes_peak > alone.cache_bytes_peak
    assert both.checks[-1].cache_bytes > plain.checks[-1].cache_bytes
    heads = SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"]
    budget, rounds = DRAFTERS["sink"].budget, both.speculation["rounds"]
    reads, most = both.speculation["draft_keys"], 4 * rounds * budget * heads
    assert 3 * rounds * budget * heads <= reads <= most  # a fourth where all three were kept


@pytest.mark.parametrize("name", ["quest", "infllm", "h2o", "sink"])
def test_what_drafts_hold_is_in_the_peak(name, small, tokenizer, monkeypatch):
    """Of all that is alive while tokens are read under full attention, copies among it."""
    checks, reads = [], []
    read, checked = speculation.SpeculativeLoop._read, speculation.SpeculativeLoop._checked

    def held(caches):
        return sum(int(one.row_stats().bytes[0]) for one in caches)

    def for_drafts(self):
        apart = [] if self.apart is None else [self.apart.cache, *self.apart.copies]
        return [*([] if self.before is None else [self.before]), *apart]

    def look(self, cache, ids, scored):
        found = read(self, cache, ids, scored)
        whole = [] if cache is self.sparse.cache else [self.sparse.cache]
        reads.append(held([cache, *whole, *for_drafts(self)]))
        return found

    def look_at_checks(self, batch, ids, uniforms):
        found = checked(self, batch, ids, uniforms)
        checks.append((held(for_drafts(self)), held([batch.cache])))
        return found

    monkeypatch.setattr(speculation.SpeculativeLoop, "_read", look)
    monkeypatch.setattr(speculation.SpeculativeLoop, "_checked", look_at_checks)
    (trace,) = lil.decode(
        small, tokenizer, PROMPTS[:1], backend=DRAFTERS[name], speculate=5, max_new_tokens=30
    )
    assert (len(reads) > len(checks)) == (name == "infllm")  # rows that read again
    assert trace.cache_bytes_peak == max(reads)
    assert trace.speculation["draft_bytes"] == max(drafts for drafts, _ in checks)
    assert trace.speculation["check_bytes"] == max(check for _, check in checks)
    assert (trace.speculation["draft_bytes"] > 0) == (name != "quest")


class OnDevice(torch.Tensor):
    """A tensor that the host cannot read before it has been fetched."""

    def numpy(self, *_: object, **__: object) -> None:
        raise TypeError("it is on a device")

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("name", ["quest", "h2o"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_counts_that_follow_from_choices_on_a_device_are_fetched(
    name, drafts, small, tokenizer, monkeypatch
):
    """Where each query head chooses, the host does not know how many keys all of them read."""
    rows = asked(PROMPTS[:2], max_new_tokens=[9, 12])
    page = {"page": 4} if name == "quest" else {}
    backend = attention.get(name, budget=12, gqa="query_head", **page)
    options = {"backend": backend, "speculate": drafts}
    plain = lil.decode(small, tokenizer, rows, **options)
    stats = AttentionCache.row_stats

    def on_device(self):
        found = stats(self)
        names = ("keys_read", "read_mean", "read_max")
        return dataclasses.replace(
            found, **{one: getattr(found, one).as_subclass(OnDevice) for one in names}
        )

    monkeypatch.setattr(AttentionCache, "row_stats", on_device)
    again = lil.decode(small, tokenizer, rows, **options)
    read = [[one.keys_read for one in trace.checks] for trace in plain]
    assert [[one.keys_read for one in trace.checks] for trace in again] == read


def test_no_position_beyond_the_models_is_fed(tokenizer):
    torch.manual_seed(0)
    few = Qwen3ForCausalLM(Qwen3Config(**SIZES | {"max_position_embeddings": 40}))
    few = few.to(torch.float64).eval()
    fed = []
    few.model.rotary_emb.register_forward_hook(lambda _m, args, _o: fed.append(int(args[1].max())))
    plain, drafted = pair(
        few, tokenizer, 16, DRAFTERS["quest"], rows=[lil.Request(p) for p in PROMPTS[:3]]
    )
    assert [told(one) for one in drafted] == [told(one) for one in plain]
    assert max(fed) < 40


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_prompts_and_caps(data, small, tokenizer):
    prompts = data.draw(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30),
                                 min_size=1, max_size=5))  # fmt: skip
    caps = data.draw(st.lists(st.integers(1, 25), min_size=len(prompts), max_size=len(prompts)))
    backend = DRAFTERS[data.draw(st.sampled_from(sorted(DRAFTERS)))]
    options = {"temperature": data.draw(st.sampled_from([0.0, 1.0])),
               "batch_size": data.draw(st.integers(1, 4))}  # fmt: skip
    rows = asked(prompts, max_new_tokens=caps)
    plain, drafted = pair(small, tokenizer, data.draw(st.integers(1, 6)), backend, rows=rows,
                          **options)  # fmt: skip
    assert [told(one) for one in drafted] == [told(one) for one in plain]


def test_a_trace_says_it_and_older_records_are_read(small, tokenizer):
    _, (trace, *_) = pair(small, tokenizer, 3, DRAFTERS["quest"])
    assert lil.Trace.from_dict(trace.to_dict()) == trace
    (plain, *_), _ = pair(small, tokenizer, 3, DRAFTERS["quest"])
    record = plain.to_dict()
    assert "speculation" not in record
    assert lil.Trace.from_dict(record) == plain


def test_what_cannot_be_checked_is_refused(small, tokenizer):
    def decode(**options: Any) -> None:
        lil.decode(small, tokenizer, PROMPTS, speculate=2, **options)

    for name in ("infllm", "h2o"):
        with pytest.raises(InvalidValue, match=f"0 under {name} beside regenerate"):
            decode(backend=DRAFTERS[name], detectors=[STOPS["regenerate"]])
    with pytest.raises(InvalidValue, match="keeps every key: h2o"):
        decode(backend=DRAFTERS["h2o"], detectors=[STOPS["densify"]])
    with pytest.raises(InvalidValue, match="0 beside chopper"):
        decode(backend=DRAFTERS["quest"], detectors=[lil.Chopper(CLASSIFIER, short=1)])
    with pytest.raises(InvalidValue, match="0 beside margin"):
        decode(backend=DRAFTERS["quest"], probes=[lil.Margin(below=9.0, end=WORDS[7])])
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(InvalidValue, match="speculate"):
            lil.decode(small, tokenizer, PROMPTS, speculate=wrong)


def convolving() -> Any:
    kinds = ["conv", "full_attention", "full_attention"]
    sizes = {**SIZES, "layer_types": kinds, "block_auto_adjust_ff_dim": False}
    return transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**sizes)).double().eval()


@pytest.mark.parametrize("model", [lambda: animal("gemma3"), convolving], ids=["gemma3", "lfm2"])
def test_layers_that_cannot_forget_are_refused(model, tokenizer):
    with pytest.raises(InvalidValue, match="cannot forget drafts"):
        lil.decode(model(), tokenizer, [[5, 6, 7]], backend=DRAFTERS["quest"], speculate=2)


def test_the_cache_is_read_densely_in_a_block_alone(small):
    ids = torch.arange(5, 45)[None]
    with DRAFTERS["quest"].on(small) as cache, torch.inference_mode():
        small(input_ids=ids[:, :30], past_key_values=cache.new(prompts=[30]))
        one, other = cache.new(prompts=[30]), cache.new(prompts=[30])
        for twin in (one, other):
            small(input_ids=ids[:, :30], past_key_values=twin)
        at = torch.arange(30, 40)[None]
        sparse = small(input_ids=ids[:, 30:], position_ids=at, past_key_values=one).logits
        with other.dense():
            dense = small(input_ids=ids[:, 30:], position_ids=at, past_key_values=other).logits
        whole = small(input_ids=ids, past_key_values=cache.new(prompts=[40])).logits[:, 30:]
    assert np.allclose(dense, whole, atol=1e-12)
    assert not np.allclose(sparse, whole, atol=1e-6)
    allowed = pytest.raises(InvalidValue, match="keeps all keys")
    with attention.get("h2o", budget=8).on(small) as cache, allowed, cache.dense():
        pass

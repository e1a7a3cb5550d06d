"""Reheat: where a row goes on, at which temperature, from which numbers, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from acting_rows import CUE, CUE_IDS, At, Counting, backend, run

import lil
from attention.errors import InvalidValue
from lil.decoding.sampling import Sampler, row_stream
from lil.detectors import Regenerate, Reheat

HOT = Reheat(temperature=1.7, tokens=9)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("anchor", "first"), [(12, 12), (None, 20), (0, 1)])
def test_tokens_are_those_of_a_loop_at_these_temperatures(
    qwen, tokenizer, temperature: float, anchor: int | None, first: int
) -> None:
    """The reference: nine tokens behind the cut at 1.7, the others at the run's temperature.

    Of the row's stream a sampled run has taken a number for each of 20 tokens, a greedy one none.
    """
    options: dict[str, Any] = {"temperature": temperature, "top_k": 30, "seed": 3}
    plain = run(qwen, tokenizer, **options)
    traces = run(qwen, tokenizer, [At(20, anchor, on_stop=HOT)], max_new_tokens=45, **options)
    for row, (before, trace) in enumerate(zip(plain, traces, strict=True)):
        stream = row_stream(3, str(row), 0)
        new = list(before.new_ids[:first])
        for _ in range(20 if temperature else 0):
            stream.random()
        while len(new) + 20 - first < 45 and len(new) < first + 20:  # a second verdict stops
            hot = len(new) < first + 9
            sampler = Sampler(1.7 if hot else temperature, top_k=30)
            with torch.inference_mode():
                scores = qwen(torch.tensor([[*before.prompt_ids, *new]])).logits[:, -1]
            numbers = [stream.random()] if hot or temperature else []
            new.append(int(sampler(scores, numbers)))
        assert list(trace.new_ids) == new
        assert trace.dropped == before.new_ids[first:20]
        counts = {"step": 20, "kept": first, "dropped": 20 - first, "cue_tokens": 0}
        evidence = {"detector": "at", "evidence": {"step": 20}}
        assert trace.action == {**HOT.to_dict(), **counts, **evidence}
        assert lil.Trace.from_dict(trace.to_dict()) == trace


@dataclass(frozen=True)
class AtOne(At):
    """Fires in the row of the second prompt alone."""

    def watch(self, prompt: bytes = b"") -> Counting:
        second = prompt == b" word2" * 12
        return Counting(self if second else replace(self, token=999))


@pytest.mark.parametrize("name", ["full", "h2o"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_other_rows_stay_as_they_were(qwen, tokenizer, name: str, temperature: float) -> None:
    options = {"backend": backend(name), "temperature": temperature, "batch_size": 4}
    plain = run(qwen, tokenizer, **options)
    traces = run(qwen, tokenizer, [AtOne(20, 12, on_stop=HOT)], **options)
    changed = [a.new_ids != b.new_ids for a, b in zip(plain, traces, strict=True)]
    assert changed == [False, True, False, False]


def test_at_the_runs_temperature_nothing_changes(qwen, tokenizer) -> None:
    options = {"temperature": 0.8, "max_new_tokens": 39}
    plain = run(qwen, tokenizer, **options)
    traces = run(qwen, tokenizer, [At(20, on_stop=Reheat(temperature=0.8))], **options)
    assert [trace.new_ids for trace in traces] == [trace.new_ids for trace in plain]
    assert all(trace.action and not trace.dropped for trace in traces)


@pytest.mark.parametrize("name", ["full", "h2o", "sink", "quest"])
def test_going_back_is_never_having_gone_on(qwen, tokenizer, name: str) -> None:
    """The oracle: a greedy run that is reheated at the anchor, without the tail."""
    options = {"backend": backend(name), "max_new_tokens": 60}
    traces = run(qwen, tokenizer, [At(35, 20, on_stop=HOT)], **options)
    never = run(qwen, tokenizer, [At(20, on_stop=HOT)], **options)
    plain = run(qwen, tokenizer, **options)
    for trace, other, whole in zip(traces, never, plain, strict=True):
        shorter = min(trace.tokens, other.tokens)  # a second verdict ends one of them sooner
        assert shorter >= 40
        assert trace.new_ids[:shorter] == other.new_ids[:shorter]
        assert trace.new_ids[:29] != whole.new_ids[:29]
        assert trace.dropped == whole.new_ids[20:35]


@pytest.mark.parametrize("anchor", [12, 0])
@pytest.mark.parametrize("what", [HOT, Regenerate(cue=CUE, tokens=60)], ids=["reheat", "cue"])
def test_a_row_acts_so_often_and_no_more(qwen, tokenizer, what: Any, anchor: int) -> None:
    """H2O with room for all is full attention, and goes back by states that it kept."""
    detector = At(20, anchor, on_stop=replace(what, retries=3))
    wide = replace(backend("h2o"), budget=200)
    options = {"temperature": 0.8, "max_new_tokens": 200}
    traces = run(qwen, tokenizer, [detector], backend=wide, **options)
    others = run(qwen, tokenizer, [detector], **options)
    cut = 3 * anchor or int(what is HOT)  # where no cue follows, the first token stays
    for trace, other in zip(traces, others, strict=True):
        assert trace.new_ids == other.new_ids
        assert (trace.finish, trace.evidence) == ("at", {"step": 20, "after": cut})
        assert (trace.tokens, trace.action["verdicts"]) == (cut + 20, 3)
        assert trace.decoded_tokens == 80  # each try has 20 tokens, and so has the text behind
        if what is not HOT:
            assert trace.new_ids[cut : cut + 3] == tuple(CUE_IDS)


def test_what_cannot_be_done_is_refused_by_name(qwen, tokenizer) -> None:
    for name in ("temperature", "tokens", "retries"):
        with pytest.raises(InvalidValue, match=f"{name} = 0"):
            Reheat(**{name: 0})
    with pytest.raises(InvalidValue, match="speculate = 2: expected 0 with reheat"):
        run(qwen, tokenizer, [lil.Guardian(on_stop="reheat")], speculate=2)
    with pytest.raises(InvalidValue, match="on_stop = 'reheat': expected stop"):
        lil.StopOn(lil.Guardian(on_stop="reheat"), tokenizer=tokenizer)
    # Nothing is known of a loop's beginning, so that the row goes on from its end.
    assert lil.Cycle(on_stop="reheat").action == Reheat()
    old = {"name": "regenerate", "cue": CUE, "tokens": 9, "second": "stop"}
    assert Regenerate(cue=CUE, tokens=9).identity() == old
    assert Regenerate(cue=CUE, tokens=9, retries=2).identity() == {**old, "retries": 2}

"""What follows a verdict: the output, the state behind it, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from acting_rows import CUE, CUE_IDS, PROMPTS, At, Counting, backend, fires, run
from tiny_models import requests_of

import lil
from attention.errors import InvalidValue
from lil import detectors as actions
from tests.sampling import some_slow


def test_answer_gives_the_cue_and_goes_on_as_if_it_had_been_said(qwen, tokenizer):
    plain = run(qwen, tokenizer)
    answered = run(qwen, tokenizer, [fires(20, actions.Answer(cue=CUE, tokens=9))])
    for before, trace in zip(plain, answered, strict=True):
        forced = [*before.new_ids[:20], *CUE_IDS]
        (after,) = run(qwen, tokenizer, prompts=[[*before.prompt_ids, *forced]], max_new_tokens=9)
        assert list(trace.new_ids) == [*forced, *after.new_ids]
        assert (trace.finish, trace.evidence, trace.dropped) == ("length", None, ())
        table = {"name": "answer", "cue": CUE, "tokens": 9, "second": "nothing", "detector": "at"}
        numbers = {"step": 20, "kept": 20, "dropped": 0, "cue_tokens": 3}
        assert trace.action == {**table, **numbers, "evidence": {"step": 20}}
        assert lil.Trace.from_dict(trace.to_dict()) == trace
        with pytest.raises(InvalidValue, match="decoded to its end"):
            lil.replay(trace, lil.Guardian(f=5))


CASES = [
    *((name, 20, 35, False) for name in ("full", "h2o", "sink", "quest", "infllm", "rkv")),
    *((name, 0, 9, False) for name in ("full", "h2o", "infllm", "rkv")),
    *(("h2o", *at, False) for at in ((1, 30), (24, 25))),
    *(("h2o", *at, True) for at in ((20, 35), (0, 9))),
]


@pytest.mark.parametrize(("name", "anchor", "step", "penalised"), some_slow(CASES, {3, 12}))
def test_going_back_is_never_having_gone_on(qwen, tokenizer, name, anchor, step, penalised):
    """The oracle: the same cue, given at the anchor by a run that never made the tail."""
    penalties = [lil.LZPenalty(alpha=0.5)] if penalised else []
    cue = {"cue": CUE, "tokens": 15}
    options = {"backend": backend(name), "penalties": penalties, "max_new_tokens": 60}
    back = run(qwen, tokenizer, [fires(step, actions.Regenerate(**cue), anchor)], **options)
    if anchor:
        never = run(qwen, tokenizer, [fires(anchor, actions.Answer(**cue))], **options)
    else:
        # Nothing is kept: the cue follows the prompt, token by token.
        never = run(qwen, tokenizer, [fires(1, actions.Regenerate(**cue), 0)], **options)
    plain = run(qwen, tokenizer, **options)
    for trace, other, whole in zip(back, never, plain, strict=True):
        assert trace.new_ids == other.new_ids
        assert trace.new_ids[: anchor + 3] == (*whole.new_ids[:anchor], *CUE_IDS)
        assert trace.dropped == whole.new_ids[anchor:step]
        assert trace.pieces == other.pieces
        assert trace.curve[-1] == other.curve[-1]
        assert trace.decoded_tokens == step + 18
        assert trace.tokens == anchor + 18
        assert trace.checks[-1].keys_read > other.checks[-1].keys_read
        tokens = [check.tokens for check in trace.checks]
        assert tokens == sorted(set(tokens))


def test_what_was_dropped_is_paid_for(qwen, tokenizer):
    """Full attention: the step that sees n tokens reads n keys in every layer and KV head."""
    traces = run(qwen, tokenizer, [fires(47, actions.Regenerate(cue=CUE, tokens=12), 20)])
    for trace, prompt in zip(traces, PROMPTS, strict=True):
        n = len(prompt)
        steps = [*range(n + 1, n + 47), *range(n + 20, n + 20 + 15)]
        assert trace.checks[-1].keys_read == sum(steps) * 3 * 2
        assert trace.keys_read_mean == pytest.approx(sum(steps) / len(steps))
        assert trace.keys_read_max == n + 46


def test_the_cap_bounds_what_is_paid(qwen, tokenizer):
    (trace, *_) = run(
        qwen, tokenizer, [fires(47, actions.Regenerate(cue=CUE), 20)], max_new_tokens=60
    )
    assert (trace.decoded_tokens, trace.finish) == (60, "length")
    (trace, *_) = run(
        qwen, tokenizer, [fires(47, actions.Regenerate(cue=CUE), 0)], max_new_tokens=48
    )
    assert (trace.new_ids, trace.finish) == (tuple(CUE_IDS[:1]), "length")


@pytest.mark.parametrize("cut", some_slow([20, 0], 1))
def test_a_verdict_may_keep_less_than_was_decoded(qwen, tokenizer, cut):
    """A stop there ends with what is kept; an answer begins there."""
    options = {"backend": backend("h2o"), "max_new_tokens": 40}
    plain = run(qwen, tokenizer, **options)
    stopped = run(qwen, tokenizer, [fires(30, cut=cut)], **options)
    answer = actions.Answer(cue=CUE, tokens=5)
    never = run(qwen, tokenizer, [fires(max(cut, 1), answer, cut=cut)], **options)
    answered = run(qwen, tokenizer, [fires(30, answer, cut=cut)], **options)
    for whole, short, trace, other in zip(plain, stopped, answered, never, strict=True):
        assert short.new_ids == whole.new_ids[:cut]
        # 20 is a check's own place: one check stays there, that of the whole run.
        assert [check.tokens for check in short.checks] == [*range(10, cut, 10), cut]
        assert short.dropped == whole.new_ids[cut:30]
        assert (short.finish, short.evidence) == ("at", {"step": 30})
        keys = whole.cost_at(30).keys_read
        assert short.cost_at(cut).keys_read == pytest.approx(keys, rel=0.2)
        assert trace.new_ids == other.new_ids
        assert trace.new_ids[: cut + 3] == (*whole.new_ids[:cut], *CUE_IDS)


def test_what_cannot_be_done_is_refused_first(qwen, tokenizer):
    for detector, options, message in (
        (fires(5, "densify"), {"backend": backend("h2o")}, "keeps every key: h2o has dropped some"),
        (fires(5, actions.Answer(cue="no such words")), {}, "cue = 'no such words'"),
        (fires(5, "densify"), {"prompts": requests_of(PROMPTS, forced=[[3]] * 4)}, "forced = 'at'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            run(qwen, tokenizer, [detector], **options)
    with pytest.raises(InvalidValue, match="at names no anchor"):
        run(qwen, tokenizer, [fires(5, actions.Regenerate(cue=CUE))])
    assert not qwen.config._attn_implementation.startswith("lil")


def test_actions_come_back_from_their_tables():
    for table in (actions.Answer(cue="x", tokens=3), actions.Regenerate(), actions.Densify()):
        assert actions.action(table.to_dict()) == table
        assert lil.Guardian(on_stop=table.to_dict()) == lil.Guardian(on_stop=table)


def test_a_place_that_was_never_named_is_a_bug_of_its_detector(qwen, tokenizer):
    class Nothing(Counting):
        def returns(self) -> Sequence[int]:
            return []

    class Silent(At):
        def watch(self, prompt: bytes = b"") -> Nothing:  # noqa: ARG002
            return Nothing(self)

    again = Silent(20, anchor=7, on_stop=actions.Regenerate(cue=CUE))
    with pytest.raises(RuntimeError, match=r"at goes back to token 7.*`returns` did not name"):
        run(qwen, tokenizer, [again], backend=backend("h2o"))


@pytest.mark.parametrize("what", [actions.Answer, actions.Regenerate, actions.Densify])
def test_a_second_verdict_ends_the_row(qwen, tokenizer, what):
    """The detector begins anew behind what was kept, and counts the cue."""
    options = {} if what is actions.Densify else {"cue": CUE, "tokens": 50}
    anchor = 12 if what is actions.Regenerate else None
    cut, using = anchor or 20, {"backend": backend("quest")}
    on = run(qwen, tokenizer, [fires(20, what(**options), anchor)], **using)
    ended = run(qwen, tokenizer, [fires(20, what(**options), anchor, second="stop")], **using)
    for trace, longer in zip(ended, on, strict=True):
        assert (trace.finish, trace.tokens) == ("at", cut + 20)
        assert trace.evidence == {"step": 20, "after": cut}
        assert trace.new_ids == longer.new_ids[: cut + 20]
        assert trace.dropped == longer.dropped
        assert trace.action == {**longer.action, "second": "stop"}
        assert lil.Trace.from_dict(trace.to_dict()) == trace

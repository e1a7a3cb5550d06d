"""Where detectors look: the thinking where there is any, never the answer by default."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from acting_rows import PROMPTS, run
from hypothesis import given
from hypothesis import strategies as st
from test_trace_record import TRACE

import lil
from attention.errors import InvalidValue
from lil import detectors, thinking
from lil.serving.ending import Ending, Limits, Words
from lil.serving.values import Stopping
from lil.trace import Trace
from tests.sampling import some_slow

LOOP = [b"we ", b"try ", b"again", b".\n"] * 300
END = b"</think>"
#: Each fires upon `LOOP`, some hundred tokens in at most, where it watches it.
QUICK: dict[str, lil.Detector] = {
    "guardian": lil.Guardian(f=40),
    "cycle": lil.Cycle(outside=0),
    "recurrence": lil.Recurrence(outside=0),
    "budget": lil.Budget(90),
    "stall": lil.Stall(longest=4, before=1, drift=0.5),
    "margin": lil.Margin(below=5.0, end="#"),
    "either": lil.Either([lil.Guardian(f=40), lil.Cycle(outside=0)]),
    "both": lil.Both([lil.Budget(90), lil.Cycle(outside=0)]),
}


def watched(detector: lil.Detector, prompt: bytes = b"") -> detectors.Watcher:
    """A watcher that needs no model."""
    watcher = detector.watch(prompt)
    signal = tuple((end, 0.9) for end in range(1, 2000))
    watcher.recall(dict.fromkeys(detector.signals, signal))
    return watcher


def trace(pieces: Sequence[bytes], prompt: bytes = b"") -> Trace:
    """A trace that ended by itself."""
    ids, pieces = tuple(range(len(pieces) + 1)), (*pieces, b"")
    return dataclasses.replace(TRACE, new_ids=ids, prompt_bytes=prompt, pieces=pieces)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_nothing_is_stopped_behind_the_end_of_thinking(name: str) -> None:
    detector = QUICK[name]
    assert watched(detector, b"<think>\n").update(LOOP) is not None
    answer = watched(detector, b"<think>\n")
    assert answer.update([b"so", END, *LOOP]) is None
    assert answer.tokens <= 1 or name in ("either", "both")
    assert list(answer.returns()) == []
    everywhere = dataclasses.replace(detector, region="output")
    assert watched(everywhere, b"<think>\n").update([b"so", END, *LOOP]) is not None
    assert watched(detector.everywhere()).update([b"so", END, *LOOP]) is not None


@pytest.mark.parametrize("name", sorted(QUICK))
def test_the_thinking_alone_begins_where_it_is_opened(name: str) -> None:
    alone = dataclasses.replace(QUICK[name], region="thinking")
    assert watched(alone).update(LOOP) is None
    assert watched(alone, b"the tags <think> and </think>: what are they?").update(LOOP) is None
    for opened in ([b"<think>"], [b"Well", b"<thi", b"nk", b">\n"], [b"[THINK]"]):
        verdict = watched(alone).update([*opened, *LOOP])
        assert verdict is not None
        assert verdict.step > len(opened)
    assert watched(alone, b"go [THINK]").update(LOOP) is not None


@given(st.integers(0, 200), st.lists(st.integers(1, 60), max_size=12), st.sampled_from([*QUICK]))
def test_a_verdict_before_the_end_is_that_of_the_thinking_by_itself(
    at: int, cuts: list[int], name: str
) -> None:
    """However the stream is cut, and whatever the answer says."""
    thinking = LOOP[:at]
    alone = watched(QUICK[name]).update(thinking)
    cut, text, done = watched(QUICK[name]), [*thinking, END, *LOOP], 0
    for size in (*cuts, len(text)):
        cut.update(text[done : done + size])
        done += size
    assert cut.verdict == alone


@given(
    st.lists(st.sampled_from([*LOOP[:4], b"<think>", END]), max_size=40), st.sampled_from([*QUICK])
)
def test_a_verdict_comes_no_later_where_tokens_wait(head: list[bytes], name: str) -> None:
    text, at = [*head, *LOOP], 0
    whole, waits = watched(QUICK[name]), watched(QUICK[name])
    for piece in text:
        whole.update([piece])
    while not waits.done and at < len(text):
        at += (size := waits.patience + 1)
        waits.update(text[at - size : at])
    assert waits.verdict == whole.verdict
    assert whole.verdict is None or at == whole.verdict.step


def test_more_repetition_is_asked_for_where_no_thinking_goes_on() -> None:
    for detector in (lil.Cycle(), lil.Recurrence()):
        thinking = detector.watch(b"<think>").update(LOOP)
        other = detector.watch().update(LOOP)
        answer = detector.everywhere().watch(b"<think>").update([END, *LOOP])
        assert thinking is not None
        assert other is not None
        assert answer is not None
        assert thinking.token < 150
        assert 1000 <= other.token < 1100
        assert answer.token == other.token + 1


def test_the_thinking_alone_is_refused_where_there_is_none() -> None:
    alone = lil.Cycle(region="thinking")
    parts = lil.Either([lil.Budget(9), alone])
    for detector in (alone, parts):
        detector.require_tokens([b"a", END])
        with pytest.raises(InvalidValue, match=r"region = 'thinking'.*no token </think>"):
            detector.require_tokens([b"a", b"<", b"/think>"])
        with pytest.raises(InvalidValue, match=r"region = 'thinking'.*no <think>"):
            detector.require_text(b"".join(LOOP))
    assert lil.replay(trace([b"<think>", *LOOP]), alone) is not None
    assert lil.replay(trace(LOOP, b"<think>"), alone) is not None
    with pytest.raises(InvalidValue, match="region = 'thinkng'"):
        lil.Cycle(region="thinkng")


def test_parts_watch_what_the_whole_does_unless_they_say_otherwise() -> None:
    whole = lil.Either([lil.Cycle(), lil.Guardian(region="thinking")], region="output")
    assert [part.region for part in whole.detectors] == ["output", "thinking"]
    assert lil.Either(**whole.params()) == whole
    assert [part.region for part in whole.everywhere().detectors] == ["output", "output"]
    mixed = lil.Either([lil.Cycle(outside=0), lil.Budget(9, region="output")])
    verdict = mixed.watch().update([END, *LOOP])
    assert verdict is not None
    assert verdict.evidence["part"] == "budget"


# In the loop, in `generate()`, in an engine, and replayed


def ending_at(tokenizer: Any, ids: Sequence[int], at: int) -> tuple[list[bytes], int]:
    """Bytes of tokens, that of the `at`-th the end of thinking; how many come before it."""
    table = lil.token_bytes(tokenizer)
    table[ids[at]] = END
    return table, list(ids).index(ids[at])


@pytest.mark.parametrize("region", some_slow(["thinking", None, "output"], 1))
def test_live_is_replayed_wherever_it_looks(qwen: Any, tokenizer: Any, region: str | None) -> None:
    budget = lil.Budget(30, region=region)
    fired = 0
    for plain in run(qwen, tokenizer):
        table, before = ending_at(tokenizer, plain.new_ids, 20)
        using = {"prompts": [list(plain.prompt_ids)], "token_bytes": table}
        (live,) = run(qwen, tokenizer, [budget], **using)
        (whole,) = run(qwen, tokenizer, **using)
        verdict = lil.replay(whole, budget)
        assert (live.finish == "budget") is (verdict is not None) is (region == "output")
        assert live.new_ids == whole.new_ids[: verdict.token if verdict else None]
        sooner = lil.Budget(before, region=region)
        verdict = lil.replay(whole, sooner)
        assert (verdict is not None) is (region != "thinking")  # which nothing opens
        fired += verdict is not None
        stop = lil.StopOn(budget, tokenizer=tokenizer, token_bytes=table)
        ids = torch.tensor([plain.prompt_ids])
        options = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [stop]}
        qwen.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert (stop.verdicts[0] is not None) is (region == "output")
        words = Words(tokenizer)
        words.table = table
        limits = Limits(frozenset(), 0, 0, 70)
        served = Ending(Stopping((budget,)), whole.prompt_bytes, words, limits)
        answers = [served.see([token]) for token in whole.new_ids]
        assert any(answers) is (region == "output")
    assert fired == (0 if region == "thinking" else len(PROMPTS))


@pytest.mark.parametrize(
    ("prompt", "output", "answering"),
    [
        (b"<think>", b"we try", False),
        (b"say it", b"we try", False),
        (b"say it", b"we try</think> 3", True),
        (b"<think>\n\n</think>\n\n", b"3 and", True),
        (b"<think>\n\n</think>\n\nThe answer is", b" 3", True),
        (b"a</think>b <think>", b"we try", False),
        (b"a</think>b", b"<think>we try", False),
        (b"a[/THINK]b", b"we try", True),
        (b"<think>", b"the tag [/THINK]", False),
        (b"<think>", b"the tag <thought></think>", True),
    ],
)
def test_an_answer_is_not_asked_for_where_one_is_being_given(
    prompt: bytes, output: bytes, answering: bool
) -> None:
    assert detectors.is_answering("</think>", prompt, output) is answering
    # Words that end no thinking are given whatever has been ended.
    assert not detectors.is_answering(" so the answer is", prompt, output)
    assert not detectors.is_answering("", prompt, output)


@pytest.mark.parametrize("marks", thinking.KNOWN)
def test_what_ends_is_what_was_opened(marks: thinking.Marks) -> None:
    alone = lil.Cycle(region="thinking").watch(marks.open.encode())
    other = b"</think>" if marks.end != "</think>" else b"[/THINK]"
    alone.update([other])
    assert alone.tracker.thinking
    alone.update([marks.end.encode()])
    assert alone.done
    assert thinking.state_of(f"{marks.open}a{other.decode()}b{marks.end}c").spoken == "c"
    assert marks.end in thinking.closing("so </think>", marks)
    assert thinking.marks_of(f"x {marks.open} y {marks.end}") == (marks,)
    template = "{{ '<my_think>' }} {{ '</my_think>' }}"
    assert thinking.closing("</think>", None, thinking.marks_of(template)) == "</my_think>"

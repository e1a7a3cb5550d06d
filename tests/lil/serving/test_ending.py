"""A request under watch in an engine generates what `lil.decode` does, and then its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from acting_rows import CUE, CUE_IDS, PROMPTS, fires, run
from tiny_models import build_tokenizer

import lil
from attention.errors import InvalidValue
from lil.detectors import Answer
from lil.serving.ending import Ending, Limits, Words, end_of
from lil.serving.values import Stopping

CAP, EOS = 70, 0


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(build_tokenizer())


def engine(model, prompt, ending, cap=CAP, every=1, ends=(EOS,)) -> list[int]:
    """An engine of one request: what a processor does, at every step, with whole forwards."""
    out: list[int] = []
    while len(out) < cap and (not out or out[-1] not in ends):
        with torch.inference_mode():
            scores = model(torch.tensor([[*prompt, *out]])).logits[0, -1]
        if len(out) // every * every > ending.seen:
            for start in range(ending.seen, len(out) // every * every, every):
                ending.see(out[start : start + every])
        forced = ending.forced(len(out))
        out.append(int(scores.argmax()) if forced is None else forced)
    return out


def ending(words, detectors, prompt, cap=CAP, least=0, end=EOS) -> Ending:
    limits = Limits(frozenset([EOS, end]), end, least, cap)
    return Ending(Stopping(tuple(detectors)), words.text(prompt), words, limits)


WATCHED = {
    "stop": [fires(20)],
    "answer": [fires(20, Answer(cue=CUE, tokens=9))],
    "answer, then again": [fires(7, Answer(cue=CUE, tokens=30), second="stop")],
    "the first of two": [fires(30), fires(12, Answer(cue=CUE, tokens=5))],
    "guardian": [lil.Guardian(f=10, rate=1.0, on_stop=Answer(cue=CUE, tokens=40))],
    "never": [fires(400)],
    "at the cap": [fires(CAP)],
    "answer over the cap": [fires(CAP - 4, Answer(cue=CUE, tokens=9))],
}


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("ends", [False, True])
def test_tokens_are_those_of_decode(qwen, eos, tokenizer, words, name, ends):
    # With and without an end of text that the tiny model comes upon by itself.
    token = 0 if not ends else run(qwen, tokenizer)[0].new_ids[25]
    eos(token)
    for trace in run(qwen, tokenizer, WATCHED[name]):
        watched = ending(words, WATCHED[name], trace.prompt_ids, end=token)
        watched.limits = replace(watched.limits, ends=frozenset([token]))
        out = engine(qwen, trace.prompt_ids, watched, ends=(token,))
        kept = list(trace.new_ids)
        # Where decode cuts, or an answer has had its tokens, the engine gets the end of text.
        forced = trace.finish != "eos" and len(kept) < CAP
        assert out == kept + [token] * forced


def test_a_verdict_is_told_once_with_its_evidence(words):
    watched = ending(words, [fires(5, Answer(cue=CUE, tokens=9), second="stop")], PROMPTS[0])
    first = [watched.see([token]) for token in [9, 8, 9, 8, 9]]
    assert first[:-1] == [None] * 4
    assert first[-1] == {
        "label": "",
        "detector": "at",
        "then": "answer",
        "tokens": 5,
        "tokens_below_cap": CAP - 5,
        "evidence": {"step": 5},
    }
    assert [watched.forced(n) for n in range(5, 9)] == [*CUE_IDS, None]
    second = [watched.see([token]) for token in [*CUE_IDS, 9, 8, 9]]
    assert [one and one["then"] for one in second] == [None] * 4 + ["stop", None]
    assert watched.forced(10) == EOS


@pytest.mark.parametrize("every", [4, 7, 25])
def test_late_looks_are_late_by_less_than_their_distance(qwen, words, every):
    """The cue comes behind what was generated meanwhile, and nothing is left out."""
    prompt = PROMPTS[1]
    at_once = engine(qwen, prompt, ending(words, [fires(20, Answer(cue=CUE, tokens=9))], prompt))
    late = ending(words, [fires(20, Answer(cue=CUE, tokens=9))], prompt)
    out = engine(qwen, prompt, late, every=every)
    due = -(-20 // every) * every
    assert out[:20] == at_once[:20]
    assert out[due : due + 3] == CUE_IDS
    assert len(out) == due + 3 + 9 + 1
    assert out[-1] == EOS


def test_an_engine_that_puts_a_request_back_goes_on_where_it_was(qwen, words):
    detectors = [fires(20, Answer(cue=CUE, tokens=9), second="stop")]
    whole = engine(qwen, PROMPTS[0], ending(words, detectors, PROMPTS[0]))
    for back in (3, 19, 20, 21, 23, 30):
        again = ending(words, detectors, PROMPTS[0])
        for token in whole[:back]:
            again.see([token])
        rest = engine(qwen, [*PROMPTS[0], *whole[:back]], Offset(again, back), cap=CAP - back)
        assert whole[:back] + rest == whole


class Offset:
    """An `Ending` whose first tokens are part of the prompt."""

    def __init__(self, inner: Ending, before: int) -> None:
        self.inner, self.before = inner, before

    @property
    def seen(self) -> int:
        return self.inner.seen - self.before

    def see(self, tokens):
        return self.inner.see(tokens)

    def forced(self, generated):
        return self.inner.forced(generated + self.before)


def test_least_tokens_come_first(qwen, words):
    watched = ending(words, [fires(5)], PROMPTS[0], least=12)
    assert len(engine(qwen, PROMPTS[0], watched)) == 13


def test_what_ends_a_request():
    asked = Stopping((fires(3),))
    assert end_of(asked, 7, []) == 7
    assert end_of(asked, None, [4, 5]) == 4
    assert end_of(replace(asked, token=5), 7, [4, 5]) == 5
    assert end_of(asked, None, []) is None
    assert end_of(asked, 0, [5]) == 0
    with pytest.raises(InvalidValue, match="stop_token_ids"):
        end_of(replace(asked, token=6), 7, [4, 5])


def test_a_cue_without_words_is_refused(words):
    with pytest.raises(InvalidValue, match="cue"):
        words.check([fires(3, Answer(cue="answer!", tokens=4))])

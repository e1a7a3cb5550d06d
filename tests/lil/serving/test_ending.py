"""A request under watch in an engine generates what `lil.decode` does, and then its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def engine(
    model: Any, prompt: Any, ending: Ending, every: int = 1, eos: int = EOS, before: Any = ()
) -> list[int]:
    """An engine of a request, with whole forwards; it looks at tokens every so many.

    Args:
        before: tokens that were generated and shown before the request was put back.
    """
    ids = list(before)
    while len(ids) < CAP and (not ids or ids[-1] != eos):
        with torch.inference_mode():
            scores = model(torch.tensor([[*prompt, *ids]])).logits[0, -1]
        for start in range(ending.seen, len(ids) // every * every, every):
            ending.see(ids[start : start + every])
        forced = ending.forced(len(ids))
        ids.append(int(scores.argmax()) if forced is None else forced)
    return ids


def watch(words: Words, detectors: Any, prompt: Any, least: int = 0, eos: int = EOS) -> Ending:
    limits = Limits(frozenset([eos]), eos, least, CAP)
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


@pytest.mark.parametrize(
    ("name", "ends"), [*((name, False) for name in WATCHED), ("answer", True), ("never", True)]
)
def test_tokens_are_those_of_decode(
    qwen: Any, eos: Any, tokenizer: Any, words: Words, name: str, ends: bool
) -> None:
    # With and without an end of text that the tiny model generates by itself.
    token = 0 if not ends else run(qwen, tokenizer)[0].new_ids[25]
    eos(token)
    for trace in run(qwen, tokenizer, WATCHED[name]):
        ending = watch(words, WATCHED[name], trace.prompt_ids, eos=token)
        ids = engine(qwen, trace.prompt_ids, ending, eos=token)
        # Where decode cuts, or an answer has had its tokens, the engine gets the end of text.
        forced = trace.finish != "eos" and len(trace.new_ids) < CAP
        assert ids == [*trace.new_ids, *[token] * forced]


def test_a_verdict_is_told_once_with_its_evidence(words: Words) -> None:
    ending = watch(words, [fires(5, Answer(cue=CUE, tokens=9), second="stop")], PROMPTS[0])
    first = [ending.see([token]) for token in [9, 8, 9, 8, 9]]
    assert first[:-1] == [None] * 4
    assert first[-1] == {
        "label": "",
        "detector": "at",
        "then": "answer",
        "tokens": 5,
        "tokens_below_cap": CAP - 5,
        "evidence": {"step": 5},
    }
    assert [ending.forced(n) for n in range(5, 9)] == [*CUE_IDS, None]
    second = [ending.see([token]) for token in [*CUE_IDS, 9, 8, 9]]
    actions = [verdict and verdict["then"] for verdict in second]
    assert actions == [None] * 4 + ["stop", None]
    assert ending.forced(10) == EOS


def test_least_tokens_come_first(qwen: Any, words: Words) -> None:
    assert len(engine(qwen, PROMPTS[0], watch(words, [fires(5)], PROMPTS[0], least=12))) == 13


def test_what_ends_a_request(words: Words) -> None:
    stopping = Stopping((fires(3),))
    assert end_of(stopping, 7, []) == 7
    assert end_of(stopping, None, [4, 5]) == 4
    assert end_of(replace(stopping, token=5), 7, [4, 5]) == 5
    assert end_of(stopping, None, []) is None
    with pytest.raises(InvalidValue, match="stop_token_ids"):
        end_of(replace(stopping, token=6), 7, [4, 5])
    with pytest.raises(InvalidValue, match="cue"):  # without words of the vocabulary
        words.check([fires(3, Answer(cue="answer!", tokens=4))])

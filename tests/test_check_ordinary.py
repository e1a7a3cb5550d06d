"""Answers that were asked to repeat themselves are not stopped by our detectors; loops are."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ordinary_answers import answers, loops

import lil

ANSWERS = {name: text for _, name, text in answers()}
LOOPS = dict(loops())
OURS = (lil.Cycle(), lil.Recurrence(), lil.Either("cycle+recurrence"))
TOKENS: dict[str, Callable[[str], list[bytes]]] = {
    "words": lambda text: [m.encode() for m in re.findall(r" ?\w+| ?[^\w\s]+|\s+", text)],
    "digits and signs": lambda text: [
        m.encode() for m in re.findall(r" ?[^\W\d]+|\d| ?[^\w\s]|\s+", text)
    ],
}


@pytest.mark.parametrize("split", TOKENS)
def test_answers_are_spared_at_the_defaults(split: str) -> None:
    assert len(ANSWERS) > 30
    eager = 0
    for name, text in ANSWERS.items():
        pieces = TOKENS[split](text)
        for detector in OURS:
            assert detector.watch().update(pieces) is None, (name, detector.name)
            # Behind its thinking a model may answer what it likes.
            answer = detector.watch(b"<think>\n").update([b"</think>", *pieces])
            assert answer is None, (name, detector.name)
        eager += lil.Cycle(outside=0).watch().update(pieces) is not None
    assert eager > 20  # so that there was something to be spared


@pytest.mark.parametrize("split", TOKENS)
@pytest.mark.parametrize("name", LOOPS)
def test_endless_loops_are_found(name: str, split: str) -> None:
    pieces = TOKENS[split](LOOPS[name])
    sees = {
        "one word changes": ("recurrence", "either"),
        "a sentence and an end of thinking": (),  # the first of which ends what is watched
    }.get(name, ("cycle", "recurrence", "either"))
    found = {one.name for one in OURS if one.watch().update(pieces) is not None}
    assert found == {*sees}
    everywhere = {one.name for one in OURS if one.everywhere().watch().update(pieces) is not None}
    assert everywhere >= {"recurrence", "either"}

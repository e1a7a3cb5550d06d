"""How a row ends, and what penalties and detectors see on the way."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from acting_rows import At, Seeing, fires
from tiny_models import PROMPTS, build_tokenizer, requests_of
from transformers import TopKLogitsWarper

import lil
from attention.errors import InvalidValue


@pytest.fixture(scope="module")
def free(qwen, tokenizer) -> list[lil.Trace]:
    """The same prompts with nothing to stop them but the cap."""
    return lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=40)


def test_eos_is_kept_counted_and_left_out_of_the_text(qwen, tokenizer, eos, free):
    stop = free[2].new_ids[9]
    at = free[2].new_ids.index(stop) + 1
    eos([59, stop])
    trace = lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=40)[2]
    assert trace.finish == "eos"
    assert trace.new_ids == free[2].new_ids[:at]
    assert trace.tokens == at == trace.checks[-1].tokens
    assert trace.text == tokenizer.decode(trace.new_ids[:-1])
    assert trace.curve[-1][:2] == (at, len(trace.text.encode()))
    assert trace.evidence is None


def test_eos_beats_cap_and_verdict_and_the_cap_beats_a_verdict(qwen, tokenizer, eos, free):
    stop = free[0].new_ids[9]
    at = free[0].new_ids.index(stop) + 1

    def finish(cap: int, *fire: int) -> tuple[str, int]:
        detectors = [At(token) for token in fire]
        (trace,) = lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=detectors, max_new_tokens=cap)
        return trace.finish, trace.tokens

    assert finish(40) == ("length", 40)
    assert finish(at, at) == ("length", at)
    assert finish(40, at) == ("at", at)
    eos(stop)
    assert finish(at, at) == ("eos", at)
    assert finish(at + 1, at) == ("eos", at)
    assert finish(at + 1, at - 1) == ("at", at - 1)
    assert finish(at - 1, at - 1) == ("length", at - 1)


def test_a_verdict_ends_its_row_alone_with_its_evidence(qwen, tokenizer, free):
    detector = At(7)
    rows = requests_of(PROMPTS, max_new_tokens=[40, 5, 40, 40])
    traces = lil.decode(qwen, tokenizer, rows, detectors=[detector], batch_size=2)
    assert [trace.finish for trace in traces] == ["at", "length", "at", "at"]
    assert traces[0].evidence == {"step": 7}
    assert [trace.new_ids for trace in traces] == [
        trace.new_ids[:n] for trace, n in zip(free, (7, 5, 7, 7), strict=True)
    ]


def test_a_detector_sees_the_prompts_bytes_and_then_each_token(qwen, tokenizer, free):
    detector = Seeing()
    lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=[detector], max_new_tokens=6)
    table = lil.token_bytes(tokenizer) + [b""] * 3
    (seen,) = detector.log
    assert seen == [
        b"".join(table[i] for i in PROMPTS[0]),
        *(table[i] for i in free[0].new_ids[:5]),  # at the cap's token nobody is asked
    ]
    assert free[0].prompt_bytes == seen[0]


def test_a_replay_knows_a_smaller_cap_and_eos(free):
    detector = At(7)
    assert lil.replay(free[0], detector).token == 7
    assert lil.replay(free[0], detector, max_tokens=8).token == 7
    assert lil.replay(free[0], detector, max_tokens=7) is None
    assert lil.replay(free[0], At(40)) is None
    cut = dataclasses.replace(free[0], new_ids=free[0].new_ids[:7], pieces=free[0].pieces[:7])
    assert lil.replay(dataclasses.replace(cut, finish="eos"), detector) is None
    assert lil.replay(dataclasses.replace(cut, finish="length"), detector) is None
    assert lil.replay(dataclasses.replace(cut, finish="at"), detector).token == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"check_every": 0}, "check_every = 0"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"max_new_tokens": [1, 2]}, r"max_new_tokens = \[1, 2\].*integer"),
        ({"max_new_token": 3}, "did you mean 'max_new_tokens'"),
        ({"backend": "quest"}, r"backend = 'quest'.*attention\.get"),
        ({"detectors": [lil.Guardian]}, r"detectors\[0\].*an object of lil\.Detector"),
        ({"detectors": lil.Guardian()}, "detectors = Guardian.*a list"),
        ({"penalties": [TopKLogitsWarper(5)]}, r"penalties\[0\].*a penalty of lil\.penalties"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_arguments_are_refused_before_anything_is_computed(options, message, qwen, tokenizer):
    with pytest.raises(InvalidValue, match=message):
        lil.stream(qwen, tokenizer, PROMPTS, **options)


def test_prompts_are_refused_with_their_place(qwen, tokenizer):
    with pytest.raises(InvalidValue, match=r"prompts\[1\] = 60.*0 to 59"):
        lil.stream(qwen, tokenizer, [[5], [60]])
    with pytest.raises(InvalidValue, match=r"prompts\[0\] = ''"):
        lil.stream(qwen, tokenizer, [""])
    with pytest.raises(InvalidValue, match="a list of prompts"):
        lil.stream(qwen, tokenizer, "Anna")
    padding = build_tokenizer()
    padding.pad_token = "<unk>"
    for prompts, message in (
        ([lil.Request([5], 0)], r"max_new_tokens\[0\] = 0"),
        ([[5], lil.Request([5], forced=[60])], r"forced\[1\] = 60"),
        ([[{"role": "user", "content": "Anna"}]], "apply_chat_template"),
        ([{"role": "user", "content": "Anna"}], r"apply_chat_template.*add_generation_prompt=True"),
        (tokenizer(["Anna has", "Anna"]), "BatchEncoding.*pass the texts"),
        (torch.tensor([[5, 6], [1, 7]]), "2 rows of 2 ids.*without padding .id 1"),
        ([[5, 6], [7, 1]], "2 rows of 2 ids.*without padding .id 1"),
        ([[5.5]], r"prompts\[0\] = 5.5"),
    ):
        with pytest.raises(InvalidValue, match=message):
            lil.stream(qwen, padding, prompts)


def test_what_is_as_good_is_taken(qwen, tokenizer):
    """Tensors without padding, numpy's integers, options as an object, bytes of a table."""
    expected = lil.decode(qwen, tokenizer, [[5, 6], [7, 8]], max_new_tokens=5)
    options = lil.DecodeOptions(max_new_tokens=np.int64(5), token_bytes=lil.token_bytes(tokenizer))
    for prompts in (torch.tensor([[5, 6], [7, 8]]), np.array([[5, 6], [7, 8]]).tolist()):
        first, second = lil.decode(qwen, tokenizer, prompts, options)
        assert [first.new_ids, second.new_ids] == [trace.new_ids for trace in expected]
        assert first.pieces == expected[0].pieces
    shown = inspect.signature(lil.decode).parameters
    assert shown["max_new_tokens"].default == 4096
    assert set(shown) >= {first.name for first in dataclasses.fields(lil.DecodeOptions)}


def test_tokens_come_one_by_one(qwen, tokenizer, eos, free):
    eos(free[1].new_ids[4])
    heard: dict[int, list[tuple[int, bytes]]] = {}
    options = {"on_token": lambda index, *token: heard.setdefault(index, []).append(token)}
    traces = lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=9, batch_size=3, **options)
    for index, trace in enumerate(traces):
        assert tuple(token for token, _ in heard[index]) == trace.new_ids
        assert b"".join(piece for _, piece in heard[index]) == b"".join(trace.text_pieces)
    assert {trace.finish for trace in traces} == {"eos", "length"}


@pytest.mark.parametrize("left", [0, 2])
def test_a_token_that_a_verdict_drops_is_shown(left, qwen, tokenizer, free):
    heard: list[int] = []
    options = {"on_token": lambda _, token, piece: heard.append(token)}  # noqa: ARG005
    detector = fires(4, cut=left)
    (trace,) = lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=[detector], **options)
    assert (tuple(heard), trace.new_ids) == (free[0].new_ids[:4], free[0].new_ids[:left])

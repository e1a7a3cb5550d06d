"""What requests may ask for, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lil
from attention.errors import InvalidValue
from lil.detectors import CALIBRATED, Answer
from lil.penalties import DRYPenalty, NoWaitPenalty, PresenceWindowPenalty
from lil.serving.values import check_attention, penalty_of, stopping_of


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (lil.LZPenalty, {}, None),
        (lil.LZPenalty, {"dry": "on"}, None),
        (lil.LZPenalty, {"lz": "on"}, lil.LZPenalty()),
        (lil.LZPenalty, {"lz": 1}, lil.LZPenalty()),
        (lil.LZPenalty, {"lz": True, "lz_alpha": 0.2}, lil.LZPenalty(alpha=0.2)),
        (lil.LZPenalty, {"lz_exempt": [3, 4]}, lil.LZPenalty(exempt=[3, 4])),
        (lil.LZPenalty, {"lz_include_prompt": "true"}, lil.LZPenalty(include_prompt=True)),
        (lil.LZPenalty, {"lz": "off", "lz_alpha": 0.2}, None),
        (DRYPenalty, {"dry_multiplier": 1.5}, DRYPenalty(multiplier=1.5)),
        (PresenceWindowPenalty, {"presence_window_window": 9}, PresenceWindowPenalty(window=9)),
        (NoWaitPenalty, {"nowait": "on"}, NoWaitPenalty()),
    ],
)
def test_penalties(kind: Any, values: Any, expected: Any) -> None:
    assert penalty_of(kind, values) == expected


def test_a_request_goes_over_what_the_server_was_started_with() -> None:
    default = lil.LZPenalty(alpha=0.3, window=64)
    assert penalty_of(lil.LZPenalty, {}, default) == default
    assert penalty_of(lil.LZPenalty, {"lz": "off"}, default) is None
    assert penalty_of(lil.LZPenalty, {"lz": "on"}, default) == default
    # A request that gives a parameter gives all: what was checked is what it gets.
    assert penalty_of(lil.LZPenalty, {"lz_alpha": 0.1}, default) == lil.LZPenalty(alpha=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alhpa": 0.2}, "did you mean 'lz_alpha'"),
        ({"lz_pad_token_id": 0}, "expected one of"),
        ({"lz_alpha": "much"}, "alpha"),
        ({"lz": ["on"]}, "on or off"),
        ({"lz_include_prompt": "yes"}, "on or off"),
        ({"lz_exempt": "3"}, "token ids"),
        ({"lz_window": 10**9}, "65,536"),
        ({"lz_alpha": float("nan")}, "lz_alpha|alpha"),
        ({"lz_exempt": [2**64 - 1]}, "exempt"),
        ({"lz_exempt": list(range(99))}, "at most 64"),
    ],
)
def test_penalties_that_cannot_be(values: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        penalty_of(lil.LZPenalty, values)


FILE = {"format": CALIBRATED, "detector": {"name": "recurrence", "run": 40}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recurrence(run=60, k=8)", (lil.Recurrence(run=60, k=8),)),
        ("cycle; guardian(f=100):answer", (lil.Cycle(), lil.Guardian(f=100, on_stop="answer"))),
        (
            'either(parts=[{name="recurrence", run=20}, "cycle"]):answer',
            (lil.Either([lil.Recurrence(run=20), lil.Cycle()], on_stop="answer"),),
        ),
    ],
)
def test_detectors(text: str, expected: Any) -> None:
    stopping = stopping_of({"stop_on": text})
    assert stopping is not None
    assert stopping.detectors == expected


def test_off_defaults_and_cues() -> None:
    default = stopping_of({"stop_on": "cycle"})
    assert stopping_of({}) is None
    assert stopping_of({}, default) == default
    assert stopping_of({"stop_on": "off"}, default) is None
    labelled = stopping_of({"stop_on_label": "mine"}, default)
    assert labelled is not None
    assert labelled.label == "mine"
    answering = stopping_of({"stop_on": "cycle:answer", "stop_on_tokens": 9}, cue="so")
    assert answering is not None
    assert answering.detectors[0].action == Answer(cue="so", tokens=9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on": "guardian(g=3)"}, "a parameter of guardian"),
        ({"stop_on": "guardian("}, "NAME"),
        ({"stop_on": "guardian:regenerate"}, "cannot regenerate"),
        ({"stop_on": "guardian:reheat"}, "cannot reheat"),
        ({"stop_on": "cycle:reheat"}, "cannot reheat"),
        ({"stop_on": "recurrence(run=60):answr"}, "an action behind the colon"),
        ({"stop_on": 3}, "a text"),
        ({"stop_on": ""}, "one of"),
        ({"stop_on": "chopper(weights='/etc/passwd')"}, "one of both, budget"),
        ({"stop_on": "os:system:answer"}, "one of both, budget"),
        ({"stop_on": "mine.json"}, "files are for who starts the server"),
        ({"stop_on": 'guardian(codec="os:path")'}, "codec"),
        ({"stop_on": 'either(parts="cycle+os:path")'}, "one of both, budget"),
        ({"stop_on": 'either(parts=[{name="either", parts="os:path"}])'}, "one of both, budget"),
        ({"stop_on": "either(parts=3)"}, "parts"),
        ({"stop_on": "cycle(max_period=1000000000000000000)"}, "4,096"),
        ({"stop_on": "cycle(long_period=4097)"}, "4,096"),
        ({"stop_on": f"guardian(t=1.0, f=1{400 * '0'})"}, "f"),
        ({"stop_on": "guardian(f=1)"}, "10"),
        ({"stop_on": f"either(parts={'[' * 2000}{']' * 2000})"}, "stop_on"),
        ({"stop_on": "cycle;" * 500 + "cycle"}, "at most 64"),
        ({"stop_on": "cycle" + " " * 5000}, "4096 characters"),
        ({"stop_on_label": "x" * 500}, "256 characters"),
        ({"stop_on_tokens": 4}, "without stop_on"),
        ({"stop_on": 'cycle(on_stop={name="answer", cue="x"})'}, "on_stop"),
        ({"stop_on": json.dumps(FILE)}, "stop_on"),
        ({"stop_on": "cycle", "stop_on_tokens": 3}, "without stop_on"),
        ({"stop_on": "cycle:answer", "stop_on_tokens": 0}, "tokens"),
        ({"stop_on": "cycle", "stop_on_token": "x"}, "stop_on_token"),
        ({"stop_on": "cycle", "stop_on_cue": "x"}, "one of stop_on"),
    ],
)
def test_what_cannot_be_asked_for(values: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        stopping_of(values)


def test_who_starts_a_server_may_name_files_and_paths(tmp_path: Any) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(FILE))
    stopping = stopping_of({"stop_on": f"{file}:answer"}, trusted=True)
    assert stopping is not None
    assert stopping.detectors == (lil.Recurrence(run=40, on_stop="answer"),)
    with pytest.raises(InvalidValue, match="a detector of tokens alone"):
        stopping_of({"stop_on": "stall"}, trusted=True)


@pytest.mark.parametrize(
    ("key", "name"),
    [("LZ", "lz"), ("lz-alpha", "lz_alpha"), ("STOP_ON", "stop_on"), ("stop-on", "stop_on")],
)
def test_other_spellings_of_our_names_are_refused_by_every_processor(key: str, name: str) -> None:
    for read in (stopping_of, lambda values: penalty_of(lil.LZPenalty, values), check_attention):
        with pytest.raises(InvalidValue, match=f"expected {name}:"):
            read({key: "on"})


def test_names_of_others_are_passed_over() -> None:
    others = ["session_id", "thinking_budget", "stop", "stop_tokens", "presence_penalty"]
    others += ["repetition_penalty", "window", "lazy", "dr", "alpha", "", "__req__"]
    assert penalty_of(lil.LZPenalty, dict.fromkeys(others, "on")) is None
    assert stopping_of(dict.fromkeys(others, "on")) is None
    check_attention({"attention": "full", "retention": 3, "attention_sinks": 4})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention": "ful"}, "did you mean 'full'"),
        ({"attention": "quest(budget=64)"}, "the method is the server's"),
        ({"Attention": "full"}, "attention: another spelling"),
    ],
)
def test_another_attention_is_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        check_attention(values)

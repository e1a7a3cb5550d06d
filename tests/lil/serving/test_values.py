"""What requests may ask for, and what they are told where they may not."""

from __future__ import annotations

import json

import pytest

import lil
from attention.errors import InvalidValue
from lil.detectors import CALIBRATED, Answer
from lil.penalties import DRYPenalty, PresenceWindowPenalty
from lil.serving.values import penalty_of, stopping_of


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (lil.LZPenalty, {}, None),
        (lil.LZPenalty, {"dry": "on"}, None),
        (lil.LZPenalty, {"lz": "on"}, lil.LZPenalty()),
        (lil.LZPenalty, {"lz": 1}, lil.LZPenalty()),
        (lil.LZPenalty, {"lz": True, "lz_alpha": 0.2}, lil.LZPenalty(alpha=0.2)),
        (lil.LZPenalty, {"lz_formula": "rate"}, lil.LZPenalty(formula="rate")),
        (lil.LZPenalty, {"lz_exempt": [3, 4]}, lil.LZPenalty(exempt=[3, 4])),
        (lil.LZPenalty, {"lz_include_prompt": "true"}, lil.LZPenalty(include_prompt=True)),
        (lil.LZPenalty, {"lz": "off", "lz_alpha": 0.2}, None),
        (DRYPenalty, {"dry_multiplier": 1.5}, DRYPenalty(multiplier=1.5)),
        (PresenceWindowPenalty, {"presence_window": "on"}, PresenceWindowPenalty()),
        (
            PresenceWindowPenalty,
            {"presence_window_window": 9},
            PresenceWindowPenalty(window=9),
        ),
    ],
)
def test_penalties(kind, given, expected):
    assert penalty_of(kind, given) == expected


def test_a_request_goes_over_what_the_server_was_started_with():
    default = lil.LZPenalty(alpha=0.3, window=64)
    assert penalty_of(lil.LZPenalty, {}, default) == default
    assert penalty_of(lil.LZPenalty, {"lz": "off"}, default) is None
    assert penalty_of(lil.LZPenalty, {"lz": "on"}, default) == default
    # One that gives a parameter gives all: what was checked is what it gets.
    assert penalty_of(lil.LZPenalty, {"lz_alpha": 0.1}, default) == lil.LZPenalty(alpha=0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lz_alhpa": 0.2}, "did you mean 'lz_alpha'"),
        ({"lz_pad_token_id": 0}, "expected one of"),
        ({"lz_alpha": "much"}, "alpha"),
        ({"lz_alpha": -1}, "alpha"),
        ({"lz": "perhaps"}, "on or off"),
        ({"lz": 0.5}, "on or off"),
        ({"lz": ["on"]}, "on or off"),
        ({"lz_include_prompt": "yes"}, "on or off"),
        ({"lz_exempt": "3"}, "token ids"),
        ({"lz_window": 10**9}, "65,536"),
        ({"lz_buffer": 10**4}, "256"),
        ({"lz_alpha": 1e300}, "1,000"),
        ({"lz_alpha": float("nan")}, "lz_alpha|alpha"),
        ({"lz_exempt": [2**64 - 1]}, "exempt"),
        ({"lz_exempt": list(range(99))}, "at most 64"),
    ],
)
def test_penalties_that_cannot_be(given, message):
    with pytest.raises(InvalidValue, match=message):
        penalty_of(lil.LZPenalty, given)


FILE = {"format": CALIBRATED, "detector": {"name": "recurrence", "run": 40}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("guardian", (lil.Guardian(),)),
        ("recurrence(run=60, k=8)", (lil.Recurrence(run=60, k=8),)),
        ("recurrence(run=60):answer", (lil.Recurrence(run=60, on_stop="answer"),)),
        ("cycle; guardian(f=100):answer", (lil.Cycle(), lil.Guardian(f=100, on_stop="answer"))),
        (json.dumps(FILE), (lil.Recurrence(run=40),)),
        ('either(parts="cycle+guardian")', (lil.Either("cycle+guardian"),)),
        (
            'either(parts=[{name="recurrence", run=20}, "cycle"]):answer',
            (lil.Either([lil.Recurrence(run=20), lil.Cycle()], on_stop="answer"),),
        ),
    ],
)
def test_detectors(given, expected):
    found = stopping_of({"stop_on": given})
    assert found is not None
    assert found.detectors == expected


def test_off_and_nothing():
    default = stopping_of({"stop_on": "cycle"})
    assert stopping_of({}) is None
    assert stopping_of({}, default).detectors == default.detectors
    assert (default.asked, stopping_of({}, default).asked) == (True, False)
    assert stopping_of({"stop_on": "off"}, default) is None
    assert stopping_of({"stop_on_label": "mine"}, default).label == "mine"


def test_the_cue_is_the_servers_and_its_tokens_the_requests():
    found = stopping_of({"stop_on": "cycle:answer", "stop_on_tokens": 9}, cue="so")
    assert found.detectors[0].action == Answer(cue="so", tokens=9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on": "guardian(g=3)"}, "a parameter of guardian"),
        ({"stop_on": "guardian(f=0)"}, "f = 0"),
        ({"stop_on": "guardian("}, "NAME"),
        ({"stop_on": "guardian:regenerate"}, "cannot regenerate"),
        ({"stop_on": "guardian:answr"}, "an action behind the colon"),
        ({"stop_on": "recurrence(run=60):answr"}, "an action behind the colon"),
        ({"stop_on": 3}, "a text"),
        ({"stop_on": ""}, "one of"),
        ({"stop_on": "stall"}, "one of both, budget"),
        ({"stop_on": "chopper(weights='/etc/passwd')"}, "one of both, budget"),
        ({"stop_on": "os:system"}, "one of both, budget"),
        ({"stop_on": "os:system:answer"}, "one of both, budget"),
        ({"stop_on": "mine.json"}, "files are for who starts the server"),
        ({"stop_on": 'guardian(codec="os:path")'}, "codec"),
        ({"stop_on": 'either(parts="cycle+os:path")'}, "one of both, budget"),
        ({"stop_on": 'either(parts=[{name="chopper", weights="/x"}])'}, "one of both, budget"),
        ({"stop_on": 'either(parts=[{name="either", parts="os:path"}])'}, "one of both, budget"),
        ({"stop_on": "either(parts=3)"}, "parts"),
        ({"stop_on": "recurrence(k=1000000)"}, "256"),
        ({"stop_on": "cycle(max_period=1000000000000000000)"}, "4,096"),
        ({"stop_on": "cycle(self=1)"}, "a parameter of cycle"),
        ({"stop_on": f"guardian(t=1.0, f=1{400 * '0'})"}, "f"),
        ({"stop_on": "guardian(f=1)"}, "10"),
        ({"stop_on": f"either(parts={'[' * 2000}{']' * 2000})"}, "stop_on"),
        ({"stop_on": "{" + '"a":{' * 600 + "}" * 601}, "stop_on"),
        ({"stop_on": "cycle;" * 500 + "cycle"}, "at most 64"),
        ({"stop_on": "cycle" + " " * 5000}, "4096 characters"),
        ({"stop_on_label": "x" * 500}, "256 characters"),
        ({"stop_on_token": "x"}, "stop_on_token"),
        ({"stop_on_tokens": 4}, "without stop_on"),
        ({"stop_on": 'cycle(on_stop={name="answer", cue="x"})'}, "on_stop"),
        ({"stop_on": "{not json"}, "format"),
        ({"stop_on": "{}"}, "format"),
        ({"stop_on": json.dumps(FILE | {"detector": {"name": "os:path"}})}, "one of both, budget"),
        ({"stop_on": json.dumps(FILE | {"detector": {}})}, "one of both, budget"),
        ({"stop_on": "cycle", "stop_on_tokens": 3}, "without stop_on"),
        ({"stop_on": "cycle:answer", "stop_on_tokens": 0}, "tokens"),
        ({"stop_on": "cycle", "stop_on_token": "x"}, "stop_on_token"),
        ({"stop_on": "cycle", "stop_onn": 3}, "expected stop_on: another spelling"),
        ({"stop_on": "cycle", "stop_on_cue": "x"}, "one of stop_on"),
    ],
)
def test_what_cannot_be_asked_for(given, message):
    with pytest.raises(InvalidValue, match=message):
        stopping_of(given)


def test_who_starts_a_server_may_name_files_and_paths(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(FILE))
    found = stopping_of({"stop_on": f"{file}:answer"}, trusted=True)
    assert found.detectors == (lil.Recurrence(run=40, on_stop="answer"),)
    with pytest.raises(InvalidValue, match="a detector of tokens alone"):
        stopping_of({"stop_on": "stall"}, trusted=True)

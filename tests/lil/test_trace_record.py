"""A trace survives JSON, cuts its text at `eos`, and interpolates its costs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from attention.errors import InvalidValue
from lil import Cost, Trace


def _check(tokens: int, keys: float, stored: float, seconds: float, *, read_sum: float) -> Cost:
    return Cost(tokens, keys, stored, seconds, read_sum, None)


TRACE = Trace(
    prompt_ids=(4, 5),
    new_ids=(7, 8, 9, 0),
    prompt_bytes=b"Q: ",
    pieces=(b"caf\xc3", b"\xa9", b" yes", b"<eos>"),
    finish="eos",
    evidence=None,
    curve=((2, 5, 13), (4, 9, 17)),
    checks=(
        _check(2, 30.0, 400.0, 0.5, read_sum=10.0),
        _check(4, 90.0, 600.0, 1.5, read_sum=26.0),
    ),
    keys_kept_max=6,
    keys_read_max=6,
    keys_read_mean=4.5,
    dense_layer_keys_read_mean=None,
    cache_bytes_peak=600,
    prefill_sec=0.25,
    decode_sec=1.5,
    reused_tokens=1,
)


def through_json(trace: Trace) -> Trace:
    return Trace.from_dict(json.loads(json.dumps(trace.to_dict())))


def test_round_trip_through_json():
    assert through_json(TRACE) == TRACE
    ended = dataclasses.replace(TRACE, finish="guardian", evidence={"step": 4, "growth_bytes": 3})
    assert through_json(ended) == ended
    bare = dataclasses.replace(
        TRACE, keys_read_max=None, keys_read_mean=None, decode_sec=None, curve=()
    )
    assert through_json(bare) == bare


def test_cost_between_checks():
    for check in (
        _check(0, 0, 400, 0, read_sum=0),
        _check(1, 15, 400, 0.25, read_sum=5),
        _check(3, 60, 500, 1.0, read_sum=18),
        _check(4, 90, 600, 1.5, read_sum=26),
    ):
        assert TRACE.cost_at(check.tokens) == check
    for tokens in (-1, 5):
        with pytest.raises(InvalidValue, match="0 to 4"):
            TRACE.cost_at(tokens)


def test_a_record_with_other_fields_is_refused():
    record = TRACE.to_dict()
    with pytest.raises(InvalidValue, match="did you mean 'finish'"):
        Trace.from_dict({**record, "finis": "eos"})
    del record["curve"]
    with pytest.raises(InvalidValue, match="'curve'"):
        Trace.from_dict(record)


@pytest.mark.parametrize(
    "damage",
    [
        {"pieces": {"text": "abc", "encoding": "utf-8", "lengths": [1, 1]}},
        {"pieces": {"text": "abc", "encoding": "utf-8"}},
        {"checks": [{"tokens": 1}]},
        {"curve": [[1, 2]]},
        {"new_ids": 3},
    ],
)
def test_a_damaged_record_is_refused(damage: dict[str, object]):
    with pytest.raises(InvalidValue, match=r"written by Trace\.to_dict"):
        Trace.from_dict({**TRACE.to_dict(), **damage})

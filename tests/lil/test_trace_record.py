"""A trace survives JSON, cuts its text at `eos`, and interpolates its costs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil import Cost, Trace


def _check(tokens: int, keys: float, held: float, seconds: float, *, read_sum: float) -> Cost:
    return Cost(tokens, keys, held, seconds, read_sum, None)


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


@given(st.lists(st.binary(max_size=6), max_size=30), st.binary(max_size=20))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_bytes_survive_even_as_strict_utf8_json(pieces: list[bytes], prompt: bytes):
    trace = dataclasses.replace(
        TRACE, pieces=tuple(pieces), new_ids=tuple(range(len(pieces))), prompt_bytes=prompt
    )
    stored = json.dumps(trace.to_dict(), ensure_ascii=False).encode("utf-8")
    assert Trace.from_dict(json.loads(stored)) == trace


def test_text_is_readable_in_the_record():
    assert TRACE.to_dict()["pieces"]["text"] == "café yes<eos>"


def test_text_leaves_out_the_final_eos_only():
    assert TRACE.text == "café yes"
    assert TRACE.tokens == 4
    assert dataclasses.replace(TRACE, finish="length").text == "café yes<eos>"
    broken = dataclasses.replace(TRACE, pieces=TRACE.pieces[:1], finish="length")
    assert broken.text == "caf\ufffd"


@pytest.mark.parametrize(
    "check",
    [
        _check(0, 0, 400, 0, read_sum=0),
        _check(1, 15, 400, 0.25, read_sum=5),
        _check(2, 30, 400, 0.5, read_sum=10),
        _check(3, 60, 500, 1.0, read_sum=18),
        _check(4, 90, 600, 1.5, read_sum=26),
    ],
)
def test_cost_between_checks(check: Cost):
    assert TRACE.cost_at(check.tokens) == check


def test_dense_layers_are_summed_where_there_are_some():
    checks = tuple(c._replace(dense_read_sum=100.0 * i) for i, c in enumerate(TRACE.checks))
    trace = dataclasses.replace(TRACE, checks=checks)
    assert [trace.cost_at(tokens).dense_read_sum for tokens in (0, 2, 3, 4)] == [0, 0, 50, 100]


def test_seconds_that_were_not_measured_stay_missing():
    checks = tuple(check._replace(seconds=None) for check in TRACE.checks)
    trace = dataclasses.replace(TRACE, checks=checks)
    assert [trace.cost_at(tokens).seconds for tokens in (0, 1, 3, 4)] == [None] * 4
    assert trace.cost_at(3).keys_read == 60


@pytest.mark.parametrize("tokens", [-1, 5])
def test_cost_outside_the_trace_is_refused(tokens: int):
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


ODD = (None, True, -1, 1.5, "x", [], {}, [None], {"text": 3}, 10**400, "\ud800")


def _places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inside in pairs:
        yield from _places(inside, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


def test_whatever_stands_in_a_record_is_a_trace_or_refused():
    record = TRACE.to_dict()
    refused = 0
    for path in _places(record):
        for odd in ODD:
            try:
                trace = Trace.from_dict(_replaced(record, path, odd))
            except InvalidValue:
                refused += 1
                continue
            assert isinstance(trace.text, str)
            if trace.checks:
                assert trace.cost_at(trace.tokens).tokens >= 0
            assert trace.to_dict().keys() == record.keys()
    assert refused > 300

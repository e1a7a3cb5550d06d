"""A name that is nearly one of ours is refused; others' names are passed over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lil
from attention.errors import InvalidValue
from lil.serving.keys import request_keys, require_spelled
from lil.serving.values import penalty_of, stopping_of


def distance(one: str, two: str) -> int:
    """Letters left out, put in, replaced, or exchanged with their neighbour."""
    rows = [[i + j if i * j == 0 else 0 for j in range(len(two) + 1)] for i in range(len(one) + 1)]
    for i, a in enumerate(one, 1):
        for j, b in enumerate(two, 1):
            best = [rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a != b)]
            if i > 1 and j > 1 and a == two[j - 2] and b == one[i - 2]:
                best.append(rows[i - 2][j - 2] + 1)
            rows[i][j] = min(best)
    return rows[-1][-1]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("LZ", "lz"),
        ("Lz_alpha", "lz_alpha"),
        ("lz-alpha", "lz_alpha"),
        ("lzAlpha", "lz_alpha"),
        ("DRY", "dry"),
        ("Stop_on", "stop_on"),
        ("stop-on", "stop_on"),
        ("stopOn", "stop_on"),
        ("stop_no", "stop_on"),
        ("stp_on", "stop_on"),
        ("presence_windw", "presence_window"),
        ("presence-window-strength", "presence_window_strength"),
        ("dry_allowed_lenght", "dry_allowed_length"),
    ],
)
def test_names_that_are_nearly_ours_are_refused_with_ours(key, meant):
    """By every processor: which are loaded is not known where a request is checked."""
    for of in (stopping_of, lambda given: penalty_of(lil.LZPenalty, given)):
        with pytest.raises(InvalidValue, match=f"expected {meant}:|did you mean '{meant}'"):
            of({key: "on"})


# What others' processors and the engines themselves read.
OTHERS = [
    "session_id",
    "kv_transfer_params",
    "thinking_budget",
    "target_token",
    "stop",
    "stop_tokens",
    "stop_token",
    "presence_penalty",
    "repetition_penalty",
    "window",
    "lazy",
    "dr",
    "alpha",
    "",
    "__req__",
]


def test_others_names_are_passed_over():
    require_spelled(OTHERS)
    require_spelled(request_keys())
    assert stopping_of(dict.fromkeys(OTHERS, "on")) is None
    assert penalty_of(lil.LZPenalty, dict.fromkeys(OTHERS, "on")) is None


NAMES = st.sampled_from([one for one in request_keys() if len(one.replace("_", "")) >= 6])


@given(NAMES, st.integers(0, 30), st.integers(0, 30), st.sampled_from("abqxz"), st.booleans())
def test_what_is_refused_is_one_letter_off(name, cut, put, letter, again):
    letters = [*name.replace("_", "")]
    if cut < len(letters):
        del letters[cut]
    letters.insert(min(put, len(letters)), letter)
    if again:
        letters.insert(min(cut, len(letters)), letter)
    key = "".join(letters)
    near = [one for one in request_keys() if distance(key, one.replace("_", "")) <= 1]
    known = [one for one in near if len(one.replace("_", "")) >= 6]
    if not known:
        require_spelled([key])
    elif key not in request_keys():
        with pytest.raises(InvalidValue, match="another spelling"):
            require_spelled([key])

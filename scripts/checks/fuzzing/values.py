"""Values that are wrong in ways people and other programs are wrong in."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

#: Texts that break parsers, paths, numbers, terminals and formats.
TEXTS = (
    *("", " ", "none", "None", "auto", "0", "-1", "1", "2", "03", "1.5", "1e3", "1e400", "-1e400"),
    *("nan", "inf", "true", "9" * 25, "9" * 5000, "1" + "0" * 400, "0x10", "1_000", "\u0663"),
    *(",", ",,", "1,,2", "a,b", "full,h2o", "32,64", "32,x", ":", "a:b", "a.b:C", "::", "a:b:c"),
    *("/", ".", "..", "~", "~nobody", "/dev/null", "/proc/nothing", "x" * 300, "x" * 5000),
    *("a\x00b", "\udcff", "\ud800", "é", "\u202e", "%s", "{x}", "{", "[", "]", "=", "a=b", "--"),
    *("\n", "a\nb", "\t", "\\", '"', "'", "$HOME", "guardian", "guardian:stop", "guardian:answer"),
    *("chopper", "cycle", "budget", "guardian,guardian:stop", "none,lz", "lz", "easy", "reasoner"),
    *("gsm8k", "full", "h2o", "quest", "2x-full", "3x-full", "0x-full", "9" * 400 + "x-full"),
)

NUMBERS = (0, 1, 2, 3, -1, 7, 32, 64, 2**31, 2**63, 10**20, 10**400, -(10**400), 0.0, 0.5, 1.5)
NUMBERS_TOO = (-0.0, 1e308, -1.0, math.inf, -math.inf, math.nan, 5e-324)


def scalars() -> st.SearchStrategy[Any]:
    """A number, a text, true, false or nothing."""
    return st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(NUMBERS_TOO),
        st.sampled_from(TEXTS),
        st.booleans(),
        st.none(),
        st.text(max_size=8),
        st.integers(-5, 300),
    )


def anything() -> st.SearchStrategy[Any]:
    """A scalar, or lists and tables of them."""
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(("a", "name", "guardian", "quest", "")), inner),
        ),
        max_leaves=4,
    )


def texts() -> st.SearchStrategy[str]:
    """What could stand on a command line."""
    return st.one_of(
        st.sampled_from(TEXTS),
        st.integers(-3, 5000).map(str),
        st.text(st.characters(exclude_characters="\x00"), max_size=12),
    )

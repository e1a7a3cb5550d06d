"""The matcher that LZ penalty, DRY and `lzss_bits` share."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lil.compression.matching import EMPTY, Matcher


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=40, max_size=40), min_size=1, max_size=3),
    st.integers(2, 14),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 39),
    st.sets(st.integers(0, 2), max_size=1),
)
@example([[*[0, 1, 2] * 13, 0]], 14, 6, True, 5, {0})
@example([[*[0, 1, 2] * 13, 0]], 14, 6, False, 20, {0})
@settings(max_examples=60, deadline=None, derandomize=True)
def test_matcher_equals_comparing_every_suffix(rows, size, longest, grows, loaded, breakers):
    matcher = Matcher(len(rows), None if grows else size, longest, sorted(breakers))
    matcher.load(torch.tensor([row[:loaded] for row in rows], dtype=torch.int64))
    for n in range(loaded + 1, 41):
        matcher.push(torch.tensor([row[n - 1] for row in rows]))
        for r, row in enumerate(rows):
            held = row[:n] if grows else row[:n][-size:]
            kept = matcher.tokens[r].tolist()
            assert kept == [EMPTY] * (len(kept) - len(held)) + held
            lengths = matcher.lengths[r].tolist()[len(kept) - len(held) :]
            for i in range(len(held) - 1):
                k = 0
                while k <= i and held[i - k] == held[-1 - k] and held[i - k] not in breakers:
                    k += 1
                assert min(lengths[i], i + 1) == min(k, longest)

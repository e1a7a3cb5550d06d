"""The rule that ours are measured beside is vLLM's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetition_rules import rule

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from vllm.sampling_params import RepetitionDetectionParams
from vllm.v1.core.sched.utils import check_sequence_repetition


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(2, 4),
)
def test_it_ends_a_text_where_vllm_does(ids, least, more, count):
    params = RepetitionDetectionParams(least + more, least, count)
    ends = (n for n in range(1, len(ids) + 1) if check_sequence_repetition(ids[:n], params))
    expected = next(ends, None)
    assert rule(least, least + more, count)([b"%d" % one for one in ids]) == expected

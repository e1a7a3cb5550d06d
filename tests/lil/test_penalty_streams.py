"""Every penalty against its oracle on random streams, batched, ragged and padded."""

from __future__ import annotations

import pytest

from attention.core import devices
from lil import penalties
from tests.lil.oracles import compare


def worst_of(kind: str, streams: int, seed: int) -> int:
    """Compare; returns how many streams were, so that none can be lost on the way."""
    seen = 0
    for case in compare.cases(kind, streams, seed):
        difference = case.difference(penalties.get)
        assert difference <= 1, (case, difference)
        seen += len(case.batch.prompts)
    return seen


@pytest.mark.parametrize("kind", compare.KINDS)
def test_equals_its_oracle_on_random_streams(kind: str):
    streams = 120 if kind.startswith("lz") else 60
    assert worst_of(kind, streams, seed=1) == streams


@pytest.mark.parametrize("kind", [kind for kind in compare.KINDS if kind.startswith("lz")])
def test_equals_its_oracle_where_looking_at_values_would_wait(kind: str, monkeypatch):
    monkeypatch.setattr(devices, "is_synchronous", lambda _device: False)
    assert worst_of(kind, 40, seed=2) == 40

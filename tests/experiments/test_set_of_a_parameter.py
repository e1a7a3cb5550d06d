"""A parameter set without its table is refused with the whole key."""

from __future__ import annotations

import pytest

from attention.errors import InvalidValue
from experiments.grid.presets import parse_assignment


@pytest.mark.parametrize("given", ["distinct.n=60", "mine:Mine.n=60"])
def test_the_tables_are_named(given: str) -> None:
    name = given.partition("=")[0]
    with pytest.raises(InvalidValue, match=rf"detector_params\.{name}= or action_params"):
        parse_assignment(given)
    assert parse_assignment(f"detector_params.{given}") == {
        "detector_params": {name.rpartition(".")[0]: {"n": 60}}
    }

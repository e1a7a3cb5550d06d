"""`none` stands for no detectors, however it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.grid.detectors import build_detectors
from experiments.grid.presets import load


@pytest.mark.parametrize("given", ["none", ["none"], ("none",), []])
def test_none_is_no_detector(given: object) -> None:
    assert load("demo-small", {"detectors": given}).detectors == ()


def test_a_preset_may_say_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('detectors = ["none"]\n')
    assert load(str(file)).detectors == ()
    file.write_text('detectors = ["none", "guardian"]\n')
    with pytest.raises(InvalidValue, match="detector = 'none'"):
        build_detectors(load(str(file)))

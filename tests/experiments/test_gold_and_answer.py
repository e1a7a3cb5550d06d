"""What was accepted and what was found stand beside `correct`, in samples and in frames."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.answers import last_boxed
from experiments.store.store import Store

SMALL = Path(__file__).parent / "data" / "small"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache")))


def test_in_samples_and_frames(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    quiet = ["--no-figures", "--no-page"]
    assert main(["report", str(store), *quiet, "--csv", str(file)]) == 0
    samples = pd.read_csv(file, dtype={"gold": "string", "answer": "string"})
    decoded = samples[samples.text.notna()]
    assert len(decoded)
    for _, sample in decoded.iterrows():
        box = last_boxed(sample.text)
        assert sample.answer == box if box is not None else pd.isna(sample.answer)
        assert sample.correct == (box is not None and box.strip() == sample.gold.strip())
    frame = Store(store).frame().set_index("id")
    assert not frame.acted.all()
    plain = decoded[decoded.detector == "none"]
    for _, sample in plain[plain.status == "ok"].iterrows():
        row = frame.loc[sample.record]
        assert row.gold == sample.gold
        assert row.correct == sample.correct
        assert row.answer == sample.answer if sample.correct else row.answer != row.gold


def test_a_folder_that_is_no_store_has_no_frame(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidValue, match=r"store = .*the folder of a store"):
            Store(folder).frame()

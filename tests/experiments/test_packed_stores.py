"""A store that was packed into one file is the same store again, and a strange file is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import packed_stores
import pytest
import zstandard

from experiments.cli import main as lil
from experiments.store.store import Store


@pytest.fixture
def store(tiny_model: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    asked = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    asked += ["--limit", "2", "--backend", "full,h2o", "--budget", "8", "--max-new-tokens", "12"]
    asked += ["--cap", "12", "--detector", "guardian", "--no-figures", "--no-page"]
    assert lil([*asked, "--out", str(out)]) == 0
    return out


def runs(store: Path) -> dict[str, Any]:
    with Store(store) as opened:
        return {one.id: (dict(one.meta), one.values()) for one in opened}


def test_it_comes_back_whole(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, again = tmp_path / "packed" / "store.zst", tmp_path / "again"
    assert packed_stores.main(["pack", str(store), str(file)]) == 0
    assert packed_stores.main(["unpack", str(file), str(again)]) == 0
    assert len(runs(store)) == 4
    assert runs(store) == runs(again)
    capsys.readouterr()
    reports = []
    for folder in (store, again):
        assert lil(["report", str(folder), "--json", "--no-figures", "--no-page"]) == 0
        reports.append(json.loads(capsys.readouterr().out)["rows"])
    assert reports[0] == reports[1]
    # Nothing is written over.
    assert packed_stores.main(["unpack", str(file), str(again)]) == 2
    assert "not there yet" in capsys.readouterr().err
    # Packed again it is the same file.
    twice = tmp_path / "twice.zst"
    assert packed_stores.main(["pack", str(again), str(twice)]) == 0
    assert twice.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sweep": "../out.json", "text": ""}',
        '{"sweep": "a.json", "text": 1}',
        '{"run": "../../up", "meta": {}, "trace": null}',
        '{"run": "0", "meta": {}}',
        "no json",
    ],
)
def test_a_strange_file_is_refused_and_nothing_written(text: str, tmp_path: Path) -> None:
    file, target = tmp_path / "strange.zst", tmp_path / "target"
    file.write_bytes(zstandard.ZstdCompressor().compress((text + "\n").encode()))
    assert packed_stores.main(["unpack", str(file), str(target)]) == 2
    assert not target.exists()


def test_a_torn_file_and_a_folder_without_sweeps_are_refused(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "store.zst"
    assert packed_stores.main(["pack", str(store), str(file)]) == 0
    torn = tmp_path / "torn.zst"
    torn.write_bytes(file.read_bytes()[:-40])
    assert packed_stores.main(["unpack", str(torn), str(tmp_path / "target")]) == 2
    assert not (tmp_path / "target").exists()
    assert packed_stores.main(["pack", str(tmp_path), str(tmp_path / "none.zst")]) == 2
    assert not (tmp_path / "none.zst").exists()

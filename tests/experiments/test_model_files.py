"""Folders of models that are damaged or foreign: one message, and nothing in them runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from experiments.cli import main


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _config(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _no_table(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")


def _tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": 3}')


DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {  # and whether a dry run knows
    "cut": (_cut, False),
    "no table": (_no_table, True),
    "architectures that are a text": (_config(architectures="Qwen3ForCausalLM"), True),
    "kernels of others": (_config(attn_implementation="somebody/kernel"), True),
    "no tokenizer": (_tokenizer, True),
}


@pytest.mark.parametrize(("damage", "foreseen"), DAMAGES.values(), ids=DAMAGES)
def test_one_message(
    damage: Callable[[Path], None],
    foreseen: bool,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    damage(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    grid = ["--model", "./m", "--dataset", "easy", "--limit", "1", "--max-new-tokens", "3"]
    own = ["--backend", "full", "--out", "out"]
    for command in (["run"], ["sweep", "--dry-run", *own] if foreseen else ["sweep", *own]):
        assert main([*command, *grid]) == 2
        output = capsys.readouterr()
        assert output.err.count("lil: error: model = './m'") == 1, output.err
    assert sorted(os.listdir(tmp_path)) == ["m"]


def test_scores_that_are_no_numbers(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    assert main(["run", "--model", str(tmp_path / "m"), "--limit", "1"]) == 2
    assert "hidden states of a few tokens are finite" in capsys.readouterr().err

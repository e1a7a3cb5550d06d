"""What is said when a sweep is interrupted, and of a preset that is mistyped."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli import main
from experiments.sweep import sweep


def test_an_interrupted_sweep_says_where_it_is_and_how_it_goes_on(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run", interrupted)
    out = str(tmp_path / "out")
    asked = ["--model", str(tiny_model), "--dataset", "easy", "--limit", "1", "--backend", "full"]
    assert main(["sweep", *asked, "--threads", "1", "--out", out]) == 130
    err = capsys.readouterr().err
    assert f"what was decoded is in {out}; the same command goes on from there" in err
    assert err.endswith("lil: interrupted\n")


def test_a_mistyped_preset_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--preset", "demo-smal"]) == 2
    err = capsys.readouterr().err
    assert err.count("demo-smal'") == 1
    assert "did you mean 'demo-small'" in err
    assert "TOML (" not in err

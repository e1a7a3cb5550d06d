"""What comes from outside, brought to its type: values of a configuration, files of a store."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.config import load

NINES = "9" * 5000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", NINES),
        ("limit", 10**400),
        ("limit", 2.5),
        ("budgets", "1" + "0" * 400),
        ("budgets", [64, True]),
        ("temperature", "1e400"),
        ("temperature", 10**400),
        ("temperature", math.nan),
        ("top_p", math.inf),
        ("threads", 100_000),
        ("cap", NINES),
        ("seed", 2**63),
        ("penalty_params", {"lz": {"alpha": math.nan}}),
        ("penalty_params", {"lz": {"alpha": {1, 2}}}),
        ("penalty_params", {"lz": 3}),
        ("backend_params", 5),
        ("models", [3]),
    ],
)
def test_a_value_no_sweep_can_use_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{key} = ") as caught:
        load("demo", {key: value})
    assert len(str(caught.value)) < 400


def test_numbers_may_be_typed_as_texts() -> None:
    config = load("demo", {"limit": "7", "top_p": "0.5", "budgets": "32, 64,32", "threads": "2"})
    assert (config.limit, config.top_p, config.budgets, config.threads) == (7, 0.5, (32, 64), 2)


@pytest.mark.parametrize(
    "typed",
    [
        ["--set", "models=x", "--set", "models.a.b=1"],
        ["--set", "backend_params=5", "--set", "backend_params.quest.page=1"],
        ["--set", f"limit={NINES}"],
        ["--set", "penalty_params.lz.alpha=nan"],
        ["--set", "penalty_params.lz.alpha=1979-05-27"],
    ],
    ids=lambda typed: " ".join(typed)[:40],
)
def test_the_command_line_refuses_in_one_message(
    typed: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["sweep", "--preset", "demo-small", "--out", str(out), *typed]) == 2
    printed, said = capfd.readouterr()
    assert (printed, said.count("\n")) == ("", 1)
    assert said.startswith("lil: error: ")
    assert not out.exists()


def test_a_file_of_numbers_too_long_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"limit = {NINES}\n")
    with pytest.raises(InvalidValue, match=r"^preset = "):
        load(str(file))

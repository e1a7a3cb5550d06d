"""Long decodes: memory stays flat and positions exact, by the script that prints the figures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "checks" / "check_memory.py"
DROPPING = ["h2o", "raas", "random", "rkv", "sink", "snapkv", "tova", "window"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script's `main` with arguments, in this process."""
    main = runpy.run_path(str(SCRIPT))["main"]
    threads = torch.get_num_threads()

    def with_arguments(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *args])
        return int(main())

    yield with_arguments
    torch.set_num_threads(threads)


def test_a_method_that_keeps_everything_is_found_out(run: Any) -> None:
    assert run("--method", "quest", "--steps", "400") == 1


def test_every_method_that_drops_tokens_is_checked() -> None:
    assert runpy.run_path(str(SCRIPT))["dropping"]() == DROPPING


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPING)
def test_twenty_thousand_steps(name: str, run: Any) -> None:
    assert run("--method", name) == 0

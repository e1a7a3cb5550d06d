"""Fixtures: a random model of a few thousand parameters, and the smallest sweep with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saved_models import save_tiny_model

from experiments.grid.config import Config
from experiments.grid.presets import load


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_config(tiny_model: Path) -> Callable[..., Config]:
    """The smallest grid worth sweeping; keywords change it."""

    def make(**overrides: Any) -> Config:
        values: dict[str, Any] = {
            "models": str(tiny_model),
            "datasets": "easy",
            "limit": 4,
            "backends": "full,h2o,sink",
            "budgets": "32,96",
            "max_new_tokens": 24,
            "batch_size": 3,
            "check_every": 7,
            "threads": 1,
            "detector_params": {"guardian": {"f": 10, "rate": 0.6}},
        }
        return load("demo-small", values | overrides)

    return make

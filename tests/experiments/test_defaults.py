"""The same settings mean the same experiment as flags, as a TOML file and in Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.parser import Parser
from experiments.cli.settings import add_config_flags, config_from
from experiments.grid.config import Config
from experiments.grid.presets import DEFAULTS, load


def _from_flags(values: dict[str, Any], plural: bool = False) -> Config:
    parser = Parser()
    add_config_flags(parser)
    arguments = []
    for key, value in values.items():
        if isinstance(value, dict):
            for name, table in value.items():
                for parameter, setting in table.items():
                    arguments += ["--set", f"{key}.{name}.{parameter}={setting}"]
            continue
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, list):
            flag, value = flag if plural else flag.removesuffix("s"), ",".join(map(str, value))
        arguments += [flag, str(value)]
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return config_from(parsed)[1]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"budgets": [64], "backends": ["full", "quest"]},
        {"datasets": ["hard"], "limit": 4},
        {"datasets": ["mine.jsonl"], "backends": ["full", "quest"], "budgets": [64]},
        {"models": ["somebody/model"], "datasets": ["gsm8k"], "limit": 8},
        {"datasets": ["mine.jsonl"], "backend_params": {"quest": {"page": 4}}},
        {"detectors": ["guardian"], "max_new_tokens": 40},
    ],
)
def test_flags_toml_and_python_agree(values: dict[str, Any], tmp_path: Path) -> None:
    lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
    for key, tables in values.items():
        for name, table in tables.items() if isinstance(tables, dict) else ():
            lines += [f"[{key}.{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    file = tmp_path / "own.toml"
    file.write_text("\n".join(lines))
    assert _from_flags(values) == load(str(file)) == load(DEFAULTS, values)
    assert _from_flags(values, plural=True) == load(str(file))


def test_the_demos_settings_are_those_of_the_projects_own_model_alone() -> None:
    assert load(DEFAULTS) == load("demo")
    assert load(DEFAULTS, {"datasets": "mine.jsonl"}).backend_params["quest"]["page"] == 8
    own = load(DEFAULTS, {"models": "somebody/model", "datasets": "gsm8k"})
    assert (own.backend_params, own.cap, own.detectors) == ({}, "2x-full", ("guardian",))
    assert (own.limit, own.max_new_tokens, own.dtype) == (200, 16384, "bfloat16")
    assert own == dataclasses.replace(
        load("paper"), models=own.models, datasets=own.datasets, detector_params={}
    )

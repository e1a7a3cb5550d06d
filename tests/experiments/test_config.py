"""Configurations: precedence, unknown keys, checks, the presets that ship."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import attention
from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import run_id
from experiments.grid.plan import build_backends, build_configurations, build_penalties
from experiments.grid.presets import load, parse_assignment, preset_names, preset_text
from experiments.grid.stored import penalties_of


def test_the_preset_beats_the_default_and_the_command_line_beats_both() -> None:
    assert Config().max_new_tokens == 16384
    assert load("demo").max_new_tokens == 2048
    assert load("demo", {"max_new_tokens": "77"}).max_new_tokens == 77
    assert load("demo").temperature == Config().temperature == 0.0


def test_tables_are_merged_key_by_key() -> None:
    config = load("demo", {"backend_params": {"quest": {"page": 16}, "sink": {"sinks": 2}}})
    assert config.backend_params == {
        "quest": {"page": 16, "dense_layers": 0},
        "sink": {"sinks": 2},
    }


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_every_key_has_a_comment(name: str) -> None:
    config = load(name)
    for line in preset_text(name).splitlines():
        if " = " in line:
            assert "#" in line, line
    for backend in build_backends(config):
        assert backend.budget in config.budgets or backend.name in ("full", "noise", "oracle")
    if name == "wsc-paper":  # whose classifier is the user's to make
        with pytest.raises(InvalidValue, match="train_chopper"):
            build_detectors(config)
        config = dataclasses.replace(config, detectors=("guardian",))
    guardians = [part for part in build_detectors(config) if part.name == "guardian"]
    assert all(part.params()["rate"] == 0.08 for part in guardians)
    assert guardians or name in ("chopper", "keep-prompt")


def test_one_penalty_at_two_strengths_is_rebuilt_as_it_was() -> None:
    entries = ["repetition(penalty=1.2)", "repetition(penalty=1.5)", "repetition(penalty=1.2)"]
    config = load("demo", {"penalties": entries, "penalty_params": {"repetition": {"penalty": 3}}})
    penalties = build_penalties(config)
    assert [part.params()["penalty"] for (part,) in penalties[1:]] == [1.2, 1.5]
    cells = build_configurations(
        config, "m", "00", ("easy",), build_backends(config)[:1], penalties
    )
    assert [penalties_of(config, cell) for cell in cells] == penalties
    assert len({run_id(cell, "i", "p", 0) for cell in cells}) == 3


def test_a_file_that_is_no_toml_and_one_that_is_not_there(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("limit = = 3\n")
    with pytest.raises(InvalidValue, match="valid TOML"):
        load(str(broken))
    with pytest.raises(InvalidValue, match="readable TOML"):
        load(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("cap", "full", "expected"),
    [("2x-full", 50, 100), ("4x-full", 50, 200), ("33", 50, 33), ("2x-full", None, 900)],
)
def test_the_cap_of_a_sparse_run(cap: str, full: int | None, expected: int) -> None:
    assert load("demo", {"cap": cap, "max_new_tokens": 900}).sparse_cap(full) == expected


def test_commas_of_a_path_that_exists_separate_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / "a,b, c.json", tmp_path / "d" / "e,f"]
    paths[1].mkdir(parents=True)
    paths[0].touch()
    typed = f"full,{paths[1]},lz(a=1,b=2),{paths[0]}:answer,x,y"
    parts = ("full", str(paths[1]), "lz(a=1,b=2)", f"{paths[0]}:answer", "x", "y")
    assert load("demo", {"models": typed}).models == parts
    assert load("demo", {"models": f"x,{paths[1]}z"}).models == ("x", f"{tmp_path}/d/e", "fz")


def test_assignments() -> None:
    nested = {"backend_params": {"quest": {"page": 16}}}
    assert parse_assignment("backend_params.quest.page=16") == nested
    assert parse_assignment("cap=4x-full") == {"cap": "4x-full"}
    assert parse_assignment("budgets=[32, 64]") == {"budgets": [32, 64]}
    path = {"backend_params": {"package.module:Class": {"page": 16}}}
    assert parse_assignment("backend_params.package.module:Class.page=16") == path
    assert parse_assignment("backend_params.module:Class.page=16") == {
        "backend_params": {"module:Class": {"page": 16}}
    }
    for wrong in ("limit", "=3", "a.b=3", "a..b=3", "a.b.c.d=3", "a.b..c:D.e=3"):
        with pytest.raises(InvalidValue):
            parse_assignment(wrong)


class Window(attention.Window):
    """A method whose name is not its own."""

    name = "mine"


class Sink(attention.Sink):
    """Another one."""

    name = "mine"


def test_backends_by_import_path() -> None:
    path = f"{__name__}:Window"
    config = load(
        "demo",
        {
            "backends": f"window,noise,attention:Window,{path}",
            "budgets": "32,64",
            "backend_params": {path: {"budget": 48}},
        },
    )
    backends = build_backends(config)
    # The same method asked for twice is one.
    assert [(b.name, b.budget) for b in backends] == [
        ("full", None), ("window", 32), ("window", 64), ("noise", None), ("mine", 48),
    ]  # fmt: skip
    assert type(backends[-1]) is Window
    with pytest.raises(InvalidValue, match=f"name = 'mine': .* own for {__name__}:Window"):
        build_backends(load("demo", {"backends": f"{path},{__name__}:Sink", "budgets": "32"}))

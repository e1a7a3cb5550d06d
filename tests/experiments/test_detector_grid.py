"""Any parameter of any detector, every combination, and what cannot be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lil
from attention.errors import InvalidValue
from experiments.grid.config import load
from experiments.grid.detector_grid import combined, parse_choice, parse_values
from experiments.grid.plan import build_detectors, detector_params, split_action
from experiments.store.labels import labels
from lil.chopper import Classifier


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", [1, 2]),
        (" 0.5 , .25,1e-2", [0.5, 0.25, 0.01]),
        ("deflate,zstd", ["deflate", "zstd"]),
        ("true", [True]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        ('{name = "stop"}', [{"name": "stop"}]),
        ("7,x", [7, "x"]),
        ("", []),
        (",", []),
    ],
)
def test_values(text: str, values: list[Any]) -> None:
    found = parse_values(text)
    assert (found, [*map(type, found)]) == (values, [*map(type, values)])


def test_a_choice_names_detector_and_parameter() -> None:
    demo = load("demo")
    assert parse_choice("budget.tokens=200,400", demo) == ("budget", "tokens", [200, 400])
    assert parse_choice("detector_params.guardian.f=5", demo) == ("guardian", "f", [5])
    for bad in ("budget", "budget=3", "budget.tokens", "budget.tokens=", ".tokens=3", "budget.=3"):
        with pytest.raises(InvalidValue, match=r"--set.*budget\.tokens=200,400"):
            parse_choice(bad, demo)


def test_parts_have_the_parameters_they_have_in_the_sweep() -> None:
    demo = load("demo", {"detector_params": {"either": {"parts": "cycle + guardian"}}})
    guardian = {"name": "guardian", **demo.detector_params["guardian"]}
    assert guardian["f"] == 100
    assert detector_params(demo, "either") == {"parts": [{"name": "cycle"}, guardian]}
    name, parameter, values = parse_choice("both.parts=guardian+cycle,cycle", demo)
    assert (name, parameter) == ("both", "parts")
    assert values == [[guardian, {"name": "cycle"}], [{"name": "cycle"}]]
    found = combined(["both"], {}, {"both": {"parts": values}})
    assert [one.detectors[0].params()["f"] for one in found[:1]] == [100]
    assert labels(found) == ["both(parts=guardian+cycle)", "both(parts=cycle)"]


def test_every_combination_on_top_of_what_the_sweep_had() -> None:
    found = combined(
        ["cycle", "budget", "guardian"],
        {"cycle": {"min_tokens": 7}, "budget": {"tokens": 9}},
        {"cycle": {"repeats": [2, 3], "max_period": [5, 6]}, "budget": {"tokens": [1, 1, 2]}},
    )
    told = [(d.name, d.params()) for d in found]
    assert [name for name, _ in told] == ["cycle"] * 4 + ["budget"] * 2 + ["guardian"]
    assert [(p["repeats"], p["max_period"], p["min_tokens"]) for _, p in told[:4]] == [
        (2, 5, 7),
        (2, 6, 7),
        (3, 5, 7),
        (3, 6, 7),
    ]
    assert [p["tokens"] for _, p in told[4:6]] == [1, 2]
    assert combined(["budget"], {"budget": {"tokens": 9}}, {})[0].params()["tokens"] == 9


def test_a_threshold_is_a_rate_of_its_own_f() -> None:
    own = {"guardian": {"f": 50}}
    rates = [d.params()["rate"] for d in combined(["guardian"], own, {"guardian": {"t": [5, 10]}})]
    assert rates == [0.1, 0.2]
    both = combined(["guardian"], own, {"guardian": {"t": [20], "f": [250, 500]}})
    assert [(d.params()["f"], d.params()["rate"]) for d in both] == [(250, 0.08), (500, 0.04)]


@pytest.mark.parametrize(
    ("names", "choices", "message"),
    [
        (["guradian"], {}, "did you mean 'guardian'"),
        (["guardian"], {"cylce": {"repeats": [2]}}, "did you mean 'cycle'"),
        (["budget"], {"guardian": {"f": [5]}}, "guardian.f.*a parameter of budget"),
        (["budget"], {"budget": {"tokns": [5]}}, "did you mean 'tokens'"),
        (["budget"], {"budget": {"tokens": ["x"]}}, "tokens = 'x': expected an integer"),
        (["budget"], {"budget": {"tokens": [2.5]}}, "tokens = 2.5: expected an integer"),
        (["guardian"], {"guardian": {"t": ["x"]}}, "t = 'x': expected a number above 0"),
        (["guardian"], {"guardian": {"t": [5], "f": [0]}}, "f = 0"),
        (["guardian"], {"guardian": {"codec": [3]}}, "codec = 3: expected one of"),
    ],
)
def test_what_cannot_be_asked_for(names: list[str], choices: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        combined(names, {}, choices)


def test_a_detector_brings_its_own_parameters() -> None:
    entries = "guardian(f=250,t=10),guardian:answer,either(parts='cycle+guardian')"
    demo = load("demo", {"detectors": entries})
    paper, answer, either = build_detectors(demo)
    assert (paper.params()["f"], paper.params()["rate"]) == (250, 0.04)
    assert (answer.params()["f"], answer.action.name) == (100, "answer")
    assert [part.name for part in either.detectors] == ["cycle", "guardian"]
    assert either.detectors[1].params()["f"] == 100
    assert labels([paper, build_detectors(load("demo"))[0]])[0] == "guardian(f=250, rate=0.04)"
    for bad in ("guardian(f)", "guardian(f=250", "guardian(g=3)"):
        with pytest.raises(InvalidValue):
            build_detectors(load("demo", {"detectors": bad}))


def test_parts_that_differ_have_names_that_differ() -> None:
    made = [
        lil.Either([{"name": "guardian", "rate": rate}, {"name": "both", "parts": [part, "cycle"]}])
        for rate in (0.02, 0.08)
        for part in ("budget", {"name": "budget", "tokens": 9})
    ]
    found = labels(made)
    assert len(set(found)) == 4
    assert found[0] == ("either(parts=guardian(rate=0.02)+both(parts=budget(tokens=2048)+cycle))")


def test_a_path_of_weights_is_no_part_of_an_acting_run(tmp_path: Path) -> None:
    layer = Classifier(torch.ones(4), 0.0, -1, "a model")
    found = []
    for name in ("one", "two"):
        layer.save(tmp_path / f"{name}.safetensors")
        chopper = lil.Chopper(tmp_path / f"{name}.safetensors")
        found.append(lil.Either([chopper, "cycle"], on_stop="answer").identity())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("guardian", ("guardian", "")),
        ("guardian:answer", ("guardian", "answer")),
        ("mine:Detector", ("mine:Detector", "")),
        ("mine:Detector:answer", ("mine:Detector", "answer")),
        ("chopper(weights='a:b')", ("chopper(weights='a:b')", "")),
        ("either(parts=['m:A', 'm:B']):answer", ("either(parts=['m:A', 'm:B'])", "answer")),
    ],
)
def test_an_action_stands_behind_the_last_colon(entry: str, expected: tuple[str, str]) -> None:
    assert split_action(entry) == expected

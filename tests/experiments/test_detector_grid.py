"""Any parameter of any detector, every combination, and what cannot be asked for."""

from __future__ import annotations

from typing import Any

import pytest

import lil
from attention.errors import InvalidValue
from attention.spec import Spec
from experiments.grid.detectors import (
    build_detectors,
    combined,
    defaults_of,
    detectors_like,
    labels,
    typed_choices,
)
from experiments.grid.presets import load
from lil.detectors import DETECTORS, build


def test_a_choice_names_detector_and_parameter() -> None:
    assert typed_choices(["budget.tokens=200,400"]) == {"budget": {"tokens": [200, 400]}}
    assert typed_choices(["detector_params.guardian.f=5"]) == {"guardian": {"f": [5]}}
    both = typed_choices(["budget.tokens=1", "cycle.repeats=2", "budget.tokens=3"])
    assert both == {"budget": {"tokens": [1, 3]}, "cycle": {"repeats": [2]}}
    for bad in ("budget", "budget=3", "budget.tokens", "budget.tokens=", ".tokens=3", "budget.=3"):
        with pytest.raises(InvalidValue, match=r"--set.*budget\.tokens=200,400"):
            typed_choices([bad])


def test_parts_have_the_parameters_they_have_in_the_sweep() -> None:
    demo = load("demo", {"detector_params": {"either": {"parts": "cycle + guardian"}}})
    guardian = {"name": "guardian", **demo.detector_params["guardian"]}
    assert guardian["f"] == 100
    defaults = defaults_of(demo)
    cycle, first = DETECTORS.get("cycle"), DETECTORS.get(**guardian)
    assert build(Spec("either"), defaults=defaults) == lil.Either([cycle, first])
    both = build(Spec("both", {"parts": "guardian(f=7)+cycle"}), defaults=defaults)
    assert both == lil.Both([DETECTORS.get(**{**guardian, "f": 7}), cycle])
    choices = typed_choices(["both.parts=guardian+cycle,cycle"])
    assert choices == {"both": {"parts": ["guardian+cycle", "cycle"]}}
    detectors = detectors_like(demo, combined([Spec("both")], choices))
    assert [detector.detectors[0].params()["f"] for detector in detectors[:1]] == [100]
    assert labels(detectors) == ["both(parts=guardian+cycle)", "both(parts=cycle)"]


def test_a_detector_is_no_part_of_itself() -> None:
    demo = load("demo", {"detector_params": {"either": {"parts": "cycle+either"}}})
    with pytest.raises(InvalidValue, match="other detectors than either itself"):
        build(Spec("either"), defaults=defaults_of(demo))
    inner = Spec("either", {"parts": "cycle+either(parts='budget+cycle')"})
    detector = build(inner, defaults=defaults_of(demo))
    assert [part.name for part in detector.detectors] == ["cycle", "either"]


def test_every_combination_on_top_of_what_the_sweep_had() -> None:
    own = {"cycle": {"min_tokens": 7}, "budget": {"tokens": 9}}
    config = load("demo", {"detector_params": own})
    specs = [Spec("cycle"), Spec("budget"), Spec("guardian")]
    tried = {"cycle": {"repeats": [2, 3], "max_period": [5, 6]}, "budget": {"tokens": [1, 1, 2]}}
    detectors = detectors_like(config, combined(specs, tried))
    pairs = [(d.name, d.params()) for d in detectors]
    assert [name for name, _ in pairs] == ["cycle"] * 4 + ["budget"] * 2 + ["guardian"]
    assert [(p["repeats"], p["max_period"], p["min_tokens"]) for _, p in pairs[:4]] == [
        (2, 5, 7),
        (2, 6, 7),
        (3, 5, 7),
        (3, 6, 7),
    ]
    assert [p["tokens"] for _, p in pairs[4:6]] == [1, 2]
    assert detectors_like(config, [Spec("budget")])[0].params()["tokens"] == 9
    own = combined([Spec("cycle", {"repeats": 9})], {"cycle": {"max_period": [5]}})
    (brought,) = detectors_like(config, own)
    assert [brought.params()[key] for key in ("repeats", "max_period", "min_tokens")] == [9, 5, 7]


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
        detectors_like(load("demo"), combined([*map(Spec, names)], choices))


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

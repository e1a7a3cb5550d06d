"""Detectors that act in a sweep: which runs are decoded for them, and what their samples say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, go

import lil
from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import Plan
from experiments.store import manifest
from experiments.store.samples.replay import acted_id, with_text
from experiments.store.samples.sample import Sample
from experiments.store.store import Store
from experiments.store.study import Study

NAMES = (
    "guardian,guardian:answer,guardian:regenerate,guardian:densify,guardian:reheat,budget:answer"
)
OPTIONS: dict[str, Any] = {
    "detectors": NAMES,
    "backends": "full,h2o,quest",
    "budgets": "64",
    "max_new_tokens": 70,
    "backend_params": {"quest": {"page": 8, "dense_layers": 0}},
    "detector_params": {"guardian": {"f": 10, "rate": 0.6}, "budget": {"tokens": 12}},
    "action_params": {
        "answer": {"tokens": 4},
        "regenerate": {"cue": "Let me start again from the facts."},
    },
}


def samples_of(config: Config, out: Path) -> list[Sample]:
    plan = Plan.from_dict(manifest.read(out)["plan"])
    study = Study(Store(out), plan, config)
    return [*with_text(study.samples(build_detectors(config)), study.store)]


def key(sample: Sample) -> tuple[object, ...]:
    return (sample.backend, sample.item_id, sample.detector, sample.action)


def test_only_runs_in_which_it_fires_are_decoded_again(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config(**OPTIONS)
    outcome, notes = go(config, tmp_path)
    results = samples_of(config, tmp_path)
    assert not any(sample.status == "missing" for sample in results)
    samples = {key(sample): sample for sample in results}
    acted = [s for s in samples.values() if s.action not in ("none", "stop") and s.stopped_at]
    assert outcome.counts.acted == len(acted) > 8
    assert len(Store(tmp_path)) == outcome.counts.runs + outcome.counts.acted == notes.done_runs
    for sample in samples.values():
        plain = samples[sample.backend, sample.item_id, "none", "none"]
        stopped = samples[sample.backend, sample.item_id, "guardian", "stop"]
        if sample.detector == "guardian" and sample.action != "stop":
            assert sample.stopped_at == stopped.stopped_at  # they fire at the same token
            assert sample.decode_sec is None
        if sample.stopped_at is None:
            assert (sample.tokens, sample.text) == (plain.tokens, plain.text)
        assert sample.paid_tokens == (sample.tokens or 0) + sample.dropped_tokens
    actions = {(s.backend, s.action) for s in acted}
    assert ("h2o", "answer") in actions
    assert ("h2o", "densify") not in actions  # it has dropped keys
    assert all(s.action != "densify" for s in samples.values() if s.backend == "h2o")
    back = ("regenerate", "reheat")
    assert all(any(s.dropped_tokens for s in acted if s.action == action) for action in back)
    assert not any(s.dropped_tokens for s in acted if s.action not in back)

    again, _ = go(config, tmp_path)
    assert (again.counts.decoded, again.counts.acted) == (0, 0)


def test_the_identity_of_an_acting_run(tiny_config: Make, tmp_path: Path) -> None:
    """It changes with what is done and with the cap, and with nothing else."""
    config = tiny_config(**OPTIONS)
    prepared_plan = go(config, tmp_path)[0].manifest["plan"]
    plan = Plan.from_dict(prepared_plan)
    run = plan.runs(plan.configurations[0])[0]
    answer, other = lil.Guardian(on_stop="answer"), lil.Guardian(f=10, on_stop="answer")
    ids = {
        acted_id(run, answer, 40),
        acted_id(run, answer, 41),
        acted_id(run, other, 40),
        acted_id(run, lil.Guardian(on_stop="densify"), 40),
        run.id,
    }
    assert len(ids) == 5
    assert acted_id(run, lil.Guardian(on_stop={"name": "answer"}), 40) in ids
    once = lil.Guardian(on_stop={"name": "answer", "second": "nothing"})
    assert acted_id(run, once, 40) not in ids
    assert "second" not in once.identity()["on_stop"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_params": {"anser": {"cue": "x"}}}, "action = 'anser'"),
        ({"action_params": {"answer": {"cues": "x"}}}, "'cues'.*did you mean 'cue'"),
        ({"action_params": {"answer": {"name": "stop"}}}, "name = 'stop'.*action_params.answer"),
        ({"detector_params": {"guardian": {"on_stop": 3}}}, "on_stop = 3"),
    ],
)
def test_bad_actions_are_named(tiny_config: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        build_detectors(tiny_config(**OPTIONS | change))


def test_a_cue_of_unknown_words_is_refused_before_anything_is_written(
    tiny_config: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    config = tiny_config(**OPTIONS | {"action_params": {"answer": {"cue": "zyxqwertyuiop"}}})
    with pytest.raises(InvalidValue, match="cue = 'zyxqwertyuiop'"):
        go(config, out)
    assert not out.exists()

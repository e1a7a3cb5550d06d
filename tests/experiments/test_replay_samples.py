"""Stored traces as samples: cut at caps and verdicts, with the costs they had there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, go

import lil
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import Plan
from experiments.store import manifest
from experiments.store.samples.replay import blank, measured, verdict_on, with_text
from experiments.store.store import Store
from experiments.store.study import Study


@pytest.fixture(scope="module")
def swept(
    tiny_config: Make, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, Plan, Config, Path]:
    out = tmp_path_factory.mktemp("swept")
    config = tiny_config(
        datasets="easy,medium",
        backends="full,h2o,quest,infllm",
        max_new_tokens=50,
        detector_params={"guardian": {"f": 10, "rate": 0.8}},
    )
    go(config, out)
    return Store(out), Plan.from_dict(manifest.read(out)["plan"]), config, out


def test_every_run_gives_one_sample_a_detector(swept: Any) -> None:
    store, plan, config, _ = swept
    results = Study(store, plan, config).samples(build_detectors(config))
    assert not any(sample.status == "missing" for sample in results)
    assert len(results) == 2 * len(plan) == 2 * 2 * 4 * 7
    statuses = {s.status for s in results}
    assert statuses == {"ok", "capped", "stopped"}


def test_a_stop_ends_text_tokens_costs_and_curve_where_it_fired(swept: Any) -> None:
    store, plan, config, _ = swept
    samples = [*with_text(Study(store, plan, config).samples(build_detectors(config)), store)]
    alone = {(s.backend, s.budget, s.pair): s for s in samples if s.detector == "none"}
    stopped = [s for s in samples if s.status == "stopped"]
    assert len(stopped) > 5
    for sample in stopped:
        whole = alone[sample.backend, sample.budget, sample.pair]
        assert sample.tokens == sample.stopped_at
        assert sample.tokens is not None
        assert whole.tokens is not None
        assert sample.tokens % 10 == 0
        assert sample.tokens < whole.tokens
        assert whole.text is not None
        assert sample.text is not None
        assert whole.text.startswith(sample.text)
        assert (sample.finish, sample.action, sample.detector) == ("guardian", "stop", "guardian")
        for name in ("keys_read", "decode_sec", "cache_byte_sec"):
            assert 0 < getattr(sample, name) < getattr(whole, name), name
        assert sample.curve[-1][0] == sample.tokens
        assert sample.curve[-1][1] == len(sample.text.encode())
        assert sample.curve[:-1] == whole.curve[: len(sample.curve) - 1]


def test_costs_of_a_stop_are_those_of_a_run_capped_there(swept: Any, tiny_model: Path) -> None:
    """A replayed stop against a run that really ended at that token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from experiments.grid.plan import build_backends

    store, plan, config, _ = swept
    samples = [*with_text(Study(store, plan, config).samples(build_detectors(config)), store)]
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    backends = {repr(sorted(b.identity().items())): b for b in build_backends(config)}
    checked = set()
    for cell in plan.configurations:
        for run in plan.runs(cell):
            (stopped,) = [
                s
                for s in samples
                if s.detector == "guardian"
                and (s.backend, s.budget) == (cell.backend["name"], cell.budget)
                and (s.dataset, s.item_id) == (cell.dataset, run.item_id)
            ]
            if stopped.status != "stopped" or cell.backend["name"] in checked:
                continue
            record = store.get(run.id)
            (capped,) = lil.decode(
                model,
                tokenizer,
                [record.values()["prompt_ids"]],
                backend=backends[repr(sorted(cell.backend.items()))],
                max_new_tokens=stopped.tokens,
                check_every=7,
            )
            assert capped.text == stopped.text
            assert stopped.keys_read == pytest.approx(
                capped.cost_at(capped.tokens).keys_read, rel=0.02
            )
            # Exact where a method reads nothing but keys; pages and blocks blur the proportion.
            close = 0.02
            assert stopped.keys_read_mean == pytest.approx(capped.keys_read_mean, rel=close)
            assert stopped.keys_read_max == capped.keys_read_max
            assert stopped.keys_kept_max == capped.keys_kept_max
            assert stopped.cache_bytes_peak == pytest.approx(capped.cache_bytes_peak, rel=0.05)
            assert stopped.curve[-1] == capped.curve[-1]
            checked.add(cell.backend["name"])
    assert checked == {"full", "h2o", "quest", "infllm"}


def test_what_the_store_lacks_is_counted(swept: Any, tmp_path: Path) -> None:
    _, plan, config, _ = swept
    results = Study(Store(tmp_path), plan, config).samples([])
    assert {sample.status for sample in results} == {"missing"}
    assert len(results) == len(plan)


def test_the_answer_in_a_cut_text_still_counts(swept: Any) -> None:
    store, plan, _, _ = swept
    run = plan.runs(plan.configurations[0])[0]
    record = store.get(run.id)
    trace = record.trace()
    text = b"".join(trace.pieces[:5]).decode()
    problem = run.problem._replace(scorer="exact", gold="5")
    with_answer = (*trace.pieces[:4], b"\\boxed{5}", *trace.pieces[5:])
    changed = lil.Trace.from_dict(
        trace.to_dict()
        | {
            "pieces": {
                "text": b"".join(with_answer).decode("latin-1"),
                "encoding": "latin-1",
                "lengths": [len(p) for p in with_answer],
            }
        }
    )
    sample = measured(blank(run, "none"), problem, record, changed, 5)
    assert sample.correct is True
    assert sample.status == "capped"
    before = measured(blank(run, "none"), problem, record, changed, 4)
    assert before.correct is False
    assert text != sample.text


def test_a_trace_that_never_opens_thinking_has_no_verdict_there(swept: Any) -> None:
    store, plan, _, _ = swept
    trace = store.get(plan.runs(plan.configurations[0])[0].id).trace()
    bare = dataclasses.replace(trace, prompt_bytes=b"Q:", pieces=(b"x",) * trace.tokens)
    assert verdict_on(bare, lil.Guardian(f=5, rate=5.0), 1000) is not None
    assert verdict_on(bare, lil.Guardian(f=5, rate=5.0, region="thinking"), 1000) is None

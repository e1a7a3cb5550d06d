"""The sweep: what is decoded, what is not decoded twice, and what a failure costs."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweeping import Make, go, prepare, stored

import attention
import lil
from experiments.grid import models
from experiments.grid.plan import Plan
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import decoder
from experiments.sweep import runner as backlog
from lil.decoding import filling


def tokens_of(out: Path) -> dict[str, list[int]]:
    store = Store(out)
    return {record.id: record.values()["new_ids"] for record in store if not record.failed}


def test_full_runs_first_and_caps_every_other_run(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config()
    outcome, notes = go(config, tmp_path)
    plan = Plan.from_dict(manifest.read(tmp_path)["plan"])
    assert outcome.counts.runs == len(plan) == 4 * 5 == notes.runs
    assert outcome.counts.failed == 0
    store = Store(tmp_path)
    assert len(store) == stored(store.path) == 20
    cells = [record.meta["cell"]["backend"]["name"] for record in store]
    assert cells[:4] == ["full"] * 4
    finishes = set()
    study = Study(store, plan, config)
    for run in study.runs():
        cap = study.cap(run)
        record = store.get(run.id)
        assert record is not None
        if not run.configuration.is_full:
            full = Study(store, plan, config).full(run)
            assert full is not None
            cut = full.meta["finish"] == "length"  # then all are cut there
            assert cap == (24 if cut else 2 * full.meta["tokens"])
        assert record.meta["tokens"] <= cap
        assert (record.meta["finish"] == "length") == (record.meta["tokens"] == cap) or (
            record.meta["finish"] == "eos"
        )
        finishes.add(record.meta["finish"])
    assert finishes == {"eos", "length"}  # else this grid shows nothing


def test_the_same_sweep_again_does_nothing(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tiny_config(), tmp_path)
    files = {p: p.read_bytes() for p in (tmp_path / "traces").iterdir()}
    monkeypatch.setattr(lil, "stream", None)  # anything decoded now would fail
    outcome, notes = go(tiny_config(), tmp_path)
    assert {p: p.read_bytes() for p in (tmp_path / "traces").iterdir()} == files
    assert (outcome.counts.decoded, outcome.counts.stored_before) == (0, 20)
    assert (notes.stored, notes.left, notes.tokens) == (20, 0.0, 0)


def test_a_longer_trace_serves_a_shorter_cap_and_not_the_other_way(
    tiny_config: Make, tmp_path: Path
) -> None:
    go(tiny_config(), tmp_path)
    shorter = tiny_config(max_new_tokens=12)
    outcome, _ = go(shorter, tmp_path)
    assert outcome.counts.decoded == 0
    plan = Plan.from_dict(manifest.read(tmp_path)["plan"])
    samples = Study(Store(tmp_path), plan, shorter).samples([])
    assert max(s.tokens or 0 for s in samples if s.backend == "full") == 12
    assert all(s.tokens is not None and s.tokens <= 24 for s in samples)

    longer, _ = go(tiny_config(cap="4x-full"), tmp_path)
    assert 0 < longer.counts.decoded < 16
    alone = tmp_path / "alone"
    go(tiny_config(cap="4x-full"), alone)
    assert tokens_of(tmp_path) == tokens_of(alone)


def test_a_reused_prefix_changes_no_token_and_no_keys(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(backends="full,h2o,sink,quest,infllm", budgets="128", dtype="float64")
    outcome, _ = go(config, tmp_path / "reused")
    assert outcome.counts.reused_tokens > 50
    monkeypatch.setattr(backlog.MissingRuns, "_known_prefix", lambda *_: ((), {}))
    scratch, _ = go(config, tmp_path / "scratch")
    assert scratch.counts.reused_tokens == 0
    assert scratch.counts.decoded_tokens == (
        outcome.counts.decoded_tokens + outcome.counts.reused_tokens
    )
    assert tokens_of(tmp_path / "reused") == tokens_of(tmp_path / "scratch")
    plan = Plan.from_dict(manifest.read(tmp_path / "reused")["plan"])
    pairs = zip(
        Study(Store(tmp_path / "reused"), plan, config).samples([]),
        Study(Store(tmp_path / "scratch"), plan, config).samples([]),
        strict=True,
    )
    for reused, alone in pairs:
        assert reused.status == alone.status
        assert reused.keys_read_mean == pytest.approx(alone.keys_read_mean)
        assert reused.keys_read_max == alone.keys_read_max


def _failing(bad: Callable[[dict[str, Any], list[int]], Exception | None]) -> Callable[..., Any]:
    real = lil.stream

    def stream(model: Any, tokenizer: Any, prompts: list[lil.Request], **options: Any) -> Any:
        def events() -> Iterator[tuple[int, lil.Trace]]:
            for index, trace in real(model, tokenizer, prompts, **options):
                for prompt in prompts:
                    if (error := bad(options, prompt.prompt)) is not None:
                        raise error
                yield index, trace

        return events()

    return stream


def test_one_bad_sample_costs_itself_alone(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tiny_config(), tmp_path / "good")
    config = tiny_config()
    victim = list(prepare(config, tmp_path / "bad").experiment.prompts.values())[2]

    def bad(options: dict[str, Any], prompt: list[int]) -> Exception | None:
        sparse = options["backend"].name == "h2o" and options["backend"].budget == 32
        return ValueError("a cell of this row broke") if sparse and list(prompt) == victim else None

    monkeypatch.setattr(lil, "stream", _failing(bad))
    outcome, notes = go(config, tmp_path / "bad")
    assert (outcome.counts.failed, outcome.counts.decoded) == (1, 19)
    assert any("broke" in note for note in notes.notes)
    (failed,) = [record for record in Store(tmp_path / "bad") if record.failed]
    assert failed.meta["status"] == "error"
    assert failed.meta["message"] == "ValueError: a cell of this row broke"
    good = tokens_of(tmp_path / "good")
    assert {**tokens_of(tmp_path / "bad"), failed.id: good[failed.id]} == good

    plan = Plan.from_dict(manifest.read(tmp_path / "bad")["plan"])
    samples = Study(Store(tmp_path / "bad"), plan, config).samples([])
    (error,) = [s for s in samples if s.status == "error"]
    assert (error.tokens, error.correct, error.text, error.keys_read) == (None,) * 4

    monkeypatch.undo()
    again, _ = go(config, tmp_path / "bad")
    assert again.counts.decoded == 0
    retried, _ = go(config, tmp_path / "bad", retry_failed=True)
    assert (retried.counts.decoded, retried.counts.failed) == (1, 0)
    assert tokens_of(tmp_path / "bad") == good


@pytest.mark.parametrize(("module", "ours"), [("lil.stand_in", True), ("torch.stand_in", False)])
def test_a_mistake_of_ours_is_no_result_of_a_row(
    module: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": module}
    exec("def stream(*_, **__):\n    yield from None", names)  # a TypeError
    monkeypatch.setattr(lil, "stream", names["stream"])
    request = lil.Request([1], 4, "name", 0, (), {})
    job = decoder.DecodeJob("full", (request,), attention.Full(), (), (), (), {"batch_size": 1})
    loaded: Any = SimpleNamespace(model=None, tokenizer=None, token_bytes=[])
    events = decoder.decode(loaded, job, lambda _: None)
    if ours:
        with pytest.raises(TypeError):
            next(events)
    else:
        assert isinstance(next(events), decoder.RowFailure)


def test_out_of_memory_is_a_status_of_its_own(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(options: dict[str, Any], prompt: list[int]) -> Exception | None:
        del prompt
        sink = options["backend"].name == "sink"
        return MemoryError() if sink else None

    monkeypatch.setattr(lil, "stream", _failing(bad))
    outcome, _ = go(tiny_config(limit=2, budgets="32"), tmp_path)
    assert outcome.counts.failed == 2
    statuses = [r.meta["status"] for r in Store(tmp_path) if r.failed]
    assert statuses == ["out_of_memory"] * 2


def test_a_batch_too_large_for_memory_is_decoded_in_halves(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lil.stream

    def stream(model: Any, tokenizer: Any, prompts: list[lil.Request], **options: Any) -> Any:
        if len(prompts) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(model, tokenizer, prompts, **options)

    monkeypatch.setattr(lil, "stream", stream)
    outcome, _ = go(tiny_config(budgets="32", max_new_tokens=6), tmp_path)
    assert (outcome.counts.failed, outcome.counts.decoded) == (0, 12)


def test_how_many_rows_filled_the_memory_is_recorded(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "CPU_ROWS", 2)
    for name, size in (("number", 2), ("filled", "auto")):
        go(tiny_config(budgets="32", max_new_tokens=6, batch_size=size), tmp_path / name)
        assert {record.meta["batch_size"] for record in Store(tmp_path / name)} == {2}
    assert manifest.read(tmp_path / "filled")["config"]["batch_size"] == "auto"
    assert tokens_of(tmp_path / "filled") == tokens_of(tmp_path / "number")


def test_the_manifest_says_what_ran_and_where(tiny_config: Make, tmp_path: Path) -> None:
    go(tiny_config(limit=1), tmp_path)
    values = manifest.read(tmp_path)
    assert values["status"] == "finished"
    assert values["arguments"] == ["sweep"]
    assert values["config"]["budgets"] == [32, 96]
    assert values["packages"]["torch"]
    assert values["device"] == "cpu"
    assert values["dtype"] == "float32"
    assert len(values["models"][0]["digest"]) == 32
    assert set(values) >= {"commit", "dirty", "python", "threads", "seed", "started", "ended"}
    assert Plan.from_dict(values["plan"]).to_dict() == values["plan"]


def test_a_model_is_let_go_before_the_next_is_read(
    tiny_config: Make, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(tiny_model)]
    for name in ("second", "third"):
        shutil.copytree(tiny_model, tmp_path / name)
        values = json.loads((tmp_path / name / "config.json").read_text())
        changed = values | {"rope_theta": 5.0 + len(names)}
        (tmp_path / name / "config.json").write_text(json.dumps(changed))
        names.append(str(tmp_path / name))
    loaded: list[weakref.ref[Any]] = []
    alive: list[int] = []
    real = models.load

    def load(*args: Any) -> models.LoadedModel:
        gc.collect()
        alive.append(sum(model() is not None for model in loaded))
        fresh = real(*args)
        loaded.append(weakref.ref(fresh.model))
        return fresh

    monkeypatch.setattr(models, "load", load)
    small = {"limit": 1, "backends": "sink", "budgets": "32", "max_new_tokens": 4}
    go(tiny_config(**small, models=",".join(names)), tmp_path / "out")
    assert alive == [0, 0, 0]

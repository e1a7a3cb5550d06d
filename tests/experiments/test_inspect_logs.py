"""Logs for inspect_ai hold a store's rows and samples; its own reader opens them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweeping import go

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.evals import inspect_logs
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.report import figures, measures
from experiments.store.study import Study

inspect_log = pytest.importorskip("inspect_ai.log", reason="the extra `inspect` is not installed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sweep of the first test that asks for it goes."""
    return tmp_path_factory.mktemp("inspect") / "store"


@pytest.fixture
def study(store: Path, tiny_config: Callable[..., Config]) -> Study:
    """A sweep of h2o over three problems; decoded once."""
    config = tiny_config(backends="h2o", budgets="32", limit=3, max_new_tokens=60)
    go(config, store)
    return Study.open(store)


def test_a_log_holds_its_row_and_samples(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "draw", lambda *_: [])
    logs = tmp_path / "deep" / "logs"
    assert main(["report", str(study.folder), "--inspect", str(logs)]) == 0
    samples = study.samples(build_detectors(study.config)).samples
    rows = {
        (row.backend, row.detector): row for row in measures.summarise(samples, study.config.seed)
    }
    assert len(rows) == 4
    found = [inspect_log.read_eval_log(one) for one in inspect_log.list_eval_logs(str(logs))]
    assert len(found) == len(list(logs.iterdir())) == 4
    assert len({log.eval.task for log in found}) == 4
    for log in found:
        row = rows.pop((log.eval.task_args["backend"], log.eval.task_args["detector"]))
        assert log.status == "success"
        assert (log.eval.model, log.eval.dataset.name) == (row.model, row.dataset)
        (score,) = log.results.scores
        metrics = {name: metric.value for name, metric in score.metrics.items()}
        known = {name: getattr(row, name) for name in inspect_logs.METRICS}
        assert metrics == {name: value for name, value in known.items() if value is not None}
        assert log.eval.metadata["row"] == row.to_dict()
        mine = {s.item_id: s for s in samples if (s.backend, s.detector) == _pair(log)}
        assert {sample.id for sample in log.samples} == set(mine)
        for sample in log.samples:
            one = mine[sample.id]
            assert sample.output.completion == one.text
            assert sample.output.usage.output_tokens == one.tokens
            assert sample.scores["exact"].value == ("C" if one.correct else "I")
            assert (sample.limit is not None) == (one.status == "capped")
            assert sample.total_time == (one.prefill_sec or 0) + (one.decode_sec or 0)
            for name in ("finish", "keys_read", "stopped_at", "cache_bytes_peak", "budget"):
                assert sample.metadata[name] == getattr(one, name)
            run = next(r for r in study.runs() if r.item_id == one.item_id)
            record = study.store.get(run.id)
            assert record is not None
            assert sample.input == record.trace().prompt_bytes.decode()
            assert sample.target == run.problem.gold
        assert {sample.output.stop_reason for sample in log.samples} <= {
            *("stop", "max_tokens", "unknown")
        }
    assert not rows
    stops = {s.finish for s in samples}
    assert stops >= {"length", "guardian"}  # else nothing above was looked at


def _pair(log: inspect_log.EvalLog) -> tuple[str, str]:
    return log.eval.task_args["backend"], log.eval.task_args["detector"]


def test_a_row_with_failures_is_no_success(study: Study, tmp_path: Path) -> None:
    samples = study.samples([]).samples
    broken = [
        replace(one, status="error", message="it broke", correct=None, tokens=None, text=None)
        if one.backend == "h2o" and index % 2
        else one
        for index, one in enumerate(samples)
    ]
    rows = [row.to_dict() for row in measures.summarise(broken, 0)]
    files = inspect_logs.write_logs(study, broken, rows, tmp_path)
    full, h2o = (inspect_log.read_eval_log(str(file)) for file in files)
    assert full.status == "success"
    assert h2o.status == "error"
    failed = [sample for sample in h2o.samples if sample.error]
    assert failed
    assert h2o.error.message == f"{3 - len(failed)} of 3, not comparable"
    assert not h2o.results.scores[0].metrics
    assert all(sample.error.message == "error: it broke" for sample in failed)
    assert all(sample.scores is None and not sample.output.choices for sample in failed)
    assert h2o.results.completed_samples == len(h2o.samples) - len(failed)


def test_all_logs_are_written_or_none(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = study.samples([]).samples
    rows = [row.to_dict() for row in measures.summarise(samples, 0)]
    logs, calls = tmp_path / "logs", []
    write = inspect_log.write_eval_log

    def full_disk(*args: object, **options: object) -> None:
        calls.append(args)
        if len(calls) == len(rows):
            raise OSError(28, "No space left on device")
        write(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(inspect_log, "write_eval_log", full_disk)
        with pytest.raises(InvalidValue, match="No space left"):
            inspect_logs.write_logs(study, samples, rows, logs)
    assert len(calls) == 2
    assert not logs.exists()
    names = [sorted(inspect_logs.write_logs(study, samples, rows, logs)) for _ in range(2)]
    assert names[0] == names[1] == sorted(logs.iterdir())  # again: replaced, not added

"""Sweeps that another runtime decodes, without it: what is refused, and which runs are alike.

Where rows have to be decoded, a stand-in with the engine's interface does it by `lil.decode`;
`test_vllm_sweeps.py` has the engine itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, go

import attention
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import models
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep import decoder
from experiments.sweep.executors import on_vllm


class StandIn:
    """An engine's face over `lil.decode`, which can be told to fail."""

    made: list[str] = []  # noqa: RUF012 - each test that reads it empties it
    fails: Callable[[decoder.DecodeJob, Any], bool] = staticmethod(lambda _job, _row: False)

    def __init__(self, model: on_vllm.ServedModel, backend: attention.Backend) -> None:
        self.backend, self.place = backend, {"engine": "a stand-in"}
        self._loaded = models.load(model.source, "float32", "cpu")
        StandIn.made.append(backend.name)

    def decode(self, job: decoder.DecodeJob) -> Iterator[Any]:
        for row in range(len(job.requests)):
            if self.fails(job, row):
                raise RuntimeError("the engine fell over")
            # The worker's loop takes rows of a job, so the job stays as it is.
            (event,) = decoder.decode(self._loaded, job, lambda _: None, [row])
            assert isinstance(event, decoder.RowTrace)
            yield decoder.StepCount(event.trace.tokens)
            yield decoder.RowTrace(row, event.trace, len(job.requests))

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The stand-in in its place, of a version 1."""
    monkeypatch.setattr(on_vllm, "VLLMEngine", StandIn)
    monkeypatch.setattr(on_vllm, "require_installed", lambda: None)
    monkeypatch.setattr(StandIn, "made", [])
    of_version(monkeypatch, 1)
    return monkeypatch


def of_version(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(manifest, "runtime", lambda name: f"{name} {version}")


REFUSED = [
    ("--backend h2o --budget 64", "backend = 'h2o'", "full, infllm, quest, sink, window"),
    ("--backend oracle(budget=64)", "backend = 'oracle'", "under vllm"),
    ("--null noise", "backend = 'noise'", "under vllm"),
    ("--backend sink(sinks=32) --budget 64", "positions = ", "'absolute'"),
    ("--backend quest(page=16)", "page = 16", "a multiple of 32 under vllm"),
    ("--backend quest(page=32,dense_layers=5)", "dense_layers = 5", "fewer than the 5 layers"),
    ("--dtype float64", "dtype = 'float64'", "float32"),
    ("--dtype bfloat16 --null none", "dtype = 'bfloat16'", "float32"),
    ("--weights int8 --null none", "weights = 'int8'", "stored"),
    ("--temperature 0.6", "temperature = 0.6", "0: vLLM draws"),
    ("--detector guardian:answer", "action = 'answer'", "replayed"),
    ("--detector margin", "detector = 'margin'", "hidden states"),
    ("--penalty repetition", "penalty = 'repetition'", "lz, dry, presence_window"),
    ("--workers 2", "workers = 2", "in this process"),
    ("--compile on", "compile = 'on'", "eagerly"),
    ("--engine torch", "engine = 'torch'", "vLLM's own"),
    ("--beyond-positions", "beyond_positions = True", "positions"),
    ("--device cuda", "device = 'cuda'", "vLLM's CPU build alone"),
    ("--model x.gguf --dtype float32", "model = 'x.gguf'", "GGUF"),
    ("--runtime vlm", "runtime = 'vlm'", "did you mean 'vllm'"),
]


@pytest.mark.parametrize(("typed", "value", "allowed"), REFUSED, ids=[row[0] for row in REFUSED])
@pytest.mark.usefixtures("vllm")  # as if it were installed
def test_what_the_engine_cannot_do_is_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], typed: str, value: str, allowed: str
) -> None:
    more = [] if "--runtime" in typed else ["--runtime", "vllm"]
    more += [] if "--backend" in typed else ["--backend", "full"]
    arguments = f"sweep --limit 1 --budget 64 {typed}".split()
    try:
        code = main([*arguments, *more, "--out", str(tmp_path / "out")])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "is read as" not in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"lil: error: {value}")
    assert allowed in lines[0]
    assert not (tmp_path / "out").exists()


def test_without_the_engine_its_name_is_refused(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_vllm.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidValue, match=r"runtime = 'vllm': .*where vLLM 0.32 is installed"):
        go(tiny_config(runtime="vllm", backends="full"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_it_cannot_know_of_the_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["sweep", "--runtime", "vllm", "--backend", "full", "--dataset", "easy"]
    base += ["--limit", "1", "--detector", "none", "--dry-run", "--json", "--out", str(tmp_path)]
    for installed in (False, True):
        monkeypatch.setattr(on_vllm, "is_installed", lambda installed=installed: installed)
        assert main(base) == 0
        unknown = json.dumps(json.loads(capfd.readouterr().out))
        assert on_vllm.MEMORY in unknown
        assert (on_vllm.NOT_HERE in unknown) is not installed
    assert main([*base[:1], *base[3:]]) == 0
    assert on_vllm.MEMORY not in capfd.readouterr().out


def test_a_request_says_what_a_penalty_is() -> None:
    from lil import penalties

    lz = penalties.get("lz", alpha=0.3, exempt=[5])
    assert on_vllm.request_values([lz])["lz_alpha"] == 0.3
    assert on_vllm.request_values([]) == {}


@pytest.mark.usefixtures("vllm")
def test_a_store_holds_both_and_serves_neither_as_the_other(
    tiny_config: Make, tmp_path: Path
) -> None:
    options = {"backends": "full,window", "budgets": "96", "limit": 2, "null": "none"}
    first, _ = go(tiny_config(**options), tmp_path)
    second, _ = go(tiny_config(**options, runtime="vllm"), tmp_path)
    assert (first.counts.decoded, second.counts.decoded, second.counts.stored_before) == (4, 4, 0)
    assert StandIn.made == ["full", "window"]  # an engine each, full attention first
    records = list(Store(tmp_path))
    assert sorted(record.meta["runtime"] for record in records) == [
        *["transformers 1"] * 4,
        *["vllm 1"] * 4,
    ]
    assert second.counts.reused_tokens == 0  # the engine takes no known beginning
    again, _ = go(tiny_config(**options, runtime="vllm"), tmp_path)
    assert (again.counts.decoded, again.counts.stored_before) == (0, 4)
    study = Study.open(tmp_path)
    assert {run.configuration.runtime for run in study.runs()} == {"vllm"}
    assert study.manifest["runtime"] == "vllm 1"
    assert any("runtime transformers, not vllm" in line for line in study.warnings)
    assert not any("measured against full attention decoded by" in line for line in study.warnings)


def test_a_pair_that_mixes_runtimes_is_said_by_name(
    vllm: pytest.MonkeyPatch, tiny_config: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"limit": 2, "null": "none", "budgets": "96", "runtime": "vllm"}
    go(tiny_config(**options, backends="full"), tmp_path)
    of_version(vllm, 2)
    go(tiny_config(**options, backends="full,window"), tmp_path)
    sentence = (
        "2 runs of window 96 are decoded by vllm 2 and measured against full attention decoded by "
    )
    (line,) = [line for line in Study.open(tmp_path).warnings if "decoded by" in line]
    assert line == f"{tmp_path}: {sentence}vllm 1"
    assert main(["report", str(tmp_path), "--no-figures", "--json"]) == 0
    out, err = capfd.readouterr()
    assert sentence in err
    assert json.loads(out)["manifest"]["runtime"] == "vllm 2"


def test_an_engine_that_falls_over_costs_the_rows_that_have_not_ended(
    vllm: pytest.MonkeyPatch, tiny_config: Make, tmp_path: Path
) -> None:
    options = {"backends": "full,window", "budgets": "96", "limit": 4, "null": "none"}
    config = tiny_config(**options, runtime="vllm", batch_size=4)

    def fails(job: decoder.DecodeJob, row: int) -> bool:
        return job.backend.name == "full" and row == 2

    vllm.setattr(StandIn, "fails", staticmethod(fails))
    outcome, _ = go(config, tmp_path)
    assert (outcome.counts.decoded, outcome.counts.failed) == (6, 2)
    failed = [record for record in Store(tmp_path) if record.failed]
    assert {record.meta["message"] for record in failed} == {"RuntimeError: the engine fell over"}
    assert StandIn.made == ["full", "window"]  # the next job has an engine of its own

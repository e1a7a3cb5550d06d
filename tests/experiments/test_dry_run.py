"""A dry run: what a sweep would do, from what is here, and names of what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import Make, go

import attention
from experiments.cli import main
from experiments.grid import models
from experiments.store.study import Study
from experiments.sweep.estimate import estimate, footprint


def _files(folder: Path) -> dict[str, float]:
    """All but what only spares reading the store again."""
    document = [path for path in folder.rglob("*") if "cache" not in path.relative_to(folder).parts]
    return {str(path): path.stat().st_mtime_ns for path in document}


def test_before_during_and_after_a_sweep(
    tmp_path: Path, tiny_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    config = tiny_config(penalties="none,lz", detectors="none")  # 10 configurations of 4 problems
    monkeypatch.setattr(models, "load", lambda *_: pytest.fail("a model was loaded"))
    document = estimate(config, out)
    assert not out.exists()
    assert (document["runs"], document["stored"], document["runs_of_unknown_length"]) == (40, 0, 40)
    assert document["tokens_expected"] == 40 * 24
    assert document["tokens_at_most"] == 4 * 24 + 36 * 48  # full without penalty; twice its length
    assert document["seconds"] is None
    assert any("time of" in line and "h2o" in line for line in document["unknown"])
    monkeypatch.undo()

    go(tiny_config(backends="full,h2o", budgets="32", detectors="none"), out)
    before = _files(out)
    study = Study.open(out)
    records = [study.usable(run) for run in study.runs() if run.configuration.is_full]
    full = [record.meta["tokens"] for record in records if record]
    capped = sum(record.meta["finish"] == "length" for record in records if record)
    assert 0 < capped < 4
    document = estimate(config, out)
    assert _files(out) == before
    assert (document["stored"], document["runs_of_unknown_length"]) == (8, 0)
    assert document["tokens_expected"] == 8 * sum(full)
    assert document["tokens_at_most"] == 8 * (
        2 * sum(full) - 24 * capped
    )  # a cut pair: no more room
    by_backend = {(row["backend"], row["penalty"]): row for row in document["cells"]}
    assert by_backend["full", "none"]["seconds"] == 0.0
    h2o = by_backend["h2o", "lz"]
    assert h2o["seconds"] == pytest.approx(h2o["tokens_expected"] / h2o["tokens_per_sec"])
    assert by_backend["sink", "none"]["seconds"] is None
    assert document["seconds"] is None  # one of them is not known, so the sum is not

    # Another model's weights under the same name: nothing of it is stored.
    monkeypatch.setattr(models, "find", _other(models.find))
    assert estimate(config, out)["stored"] == 0


def _other(find: Callable[..., models.ModelSource]) -> Callable[..., models.ModelSource]:
    import dataclasses

    return lambda *arguments, **more: dataclasses.replace(find(*arguments, **more), digest="other")


def test_memory_is_what_a_run_takes(tmp_path: Path, tiny_config: Make) -> None:
    backends = [
        "full",
        "sink",
        "quest",
        "h2o(gqa='query_head')",
        f"duo(pattern={[[0.9, 0.1]] * 2})",
    ]
    config = tiny_config(backends=backends, budgets="32", limit=2)
    source = models.find(config.models[0])
    size = footprint(source, "float32")
    loaded = models.load(source, "float32", "cpu")
    assert size.weight_bytes == 4 * sum(p.numel() for p in loaded.model.parameters())
    go(config, tmp_path)
    study = Study.open(tmp_path)
    for run in study.runs():
        record = study.usable(run)
        assert record is not None
        trace = record.trace()
        backend = study.backend(run.configuration)
        # The newest token is chosen, not yet held.
        stored_bytes = size.kv_bytes(backend, len(trace.prompt_ids) + trace.tokens - 1)
        if backend.name == "full":
            assert trace.cache_bytes_peak == stored_bytes
        else:  # and the bounds of pages, or a few free slots
            assert stored_bytes <= trace.cache_bytes_peak < 1.3 * stored_bytes, backend.name
    dense = attention.get("sink", budget=32, dense_layers=1)
    assert 2 * size.kv_bytes(dense, 100) == size.kv_bytes(attention.get("full"), 100 + 32)
    slides = replace(size, windows=(16, None))  # a layer with a window has no budget
    layered = attention.get("h2o", budget=[0, 32])
    assert 2 * slides.kv_bytes(layered, 100) == size.kv_bytes(attention.get("full"), 16 + 32)
    assert size.kv_bytes(dense, 20) == size.kv_bytes(attention.get("full"), 20)


def test_without_network_models_or_data_it_says_what_it_cannot_know(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    command = ["sweep", "--preset", "paper", "--dry-run"]
    assert main([*command, "--json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    # Full attention, sixteen sparse configurations and, in half precision, a null.
    assert document["runs"] == 3 * 3 * 18 * 200
    assert document["tokens_at_most"] == 3 * 3 * 200 * 16384 * (1 + 17 * 2)
    assert (document["stored"], document["seconds"]) == (0, None)
    assert {row["weight_bytes"] for row in document["memory"]} == {None}
    text = "\n".join(document["unknown"])
    for word in ("gsm8k is not fetched: 200", "DeepScaleR-1.5B-Preview is not here", "time of"):
        assert word in text
    assert main([*command, "--limit", "all"]) == 0
    out = capfd.readouterr().out
    assert "1,319" in out
    assert "math500 is not fetched: 500" in out
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "cache"])

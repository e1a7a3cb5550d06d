"""Faults of sweeps and stores that were found once, each with the smallest case that shows it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweeping import Make, go, jsonl

import attention
from experiments.store import manifest
from experiments.store.samples.replay import verdict_on
from experiments.store.study import Study
from experiments.sweep import decoder
from lil import Guardian, Request

SMALL = Path(__file__).parent / "data" / "small"


def test_a_trace_that_never_opens_thinking_has_no_verdict_there() -> None:
    study = Study.open(SMALL)
    record = next(r for run in study.runs() if (r := study.usable(run)) is not None)
    trace = record.trace()
    bare = dataclasses.replace(trace, prompt_bytes=b"Q:", pieces=(b"x",) * trace.tokens)
    assert verdict_on(bare, Guardian(f=5, rate=5.0), 1000) is not None
    assert verdict_on(bare, Guardian(f=5, rate=5.0, region="thinking"), 1000) is None


@pytest.mark.parametrize(("module", "ours"), [("lil.stand_in", True), ("torch.stand_in", False)])
def test_a_mistake_of_ours_is_no_result_of_a_row(
    module: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": module}
    exec("def stream(*_, **__):\n    yield from None", names)  # a TypeError
    monkeypatch.setattr(decoder.lil, "stream", names["stream"])
    request = Request([1], 4, "name", 0, (), {})
    job = decoder.DecodeJob(
        "full", (request,), attention.get("full"), (), (), (), {"batch_size": 1}
    )
    loaded: Any = SimpleNamespace(model=None, tokenizer=None, token_bytes=[])
    events = decoder.decode(loaded, job, lambda _: None)
    if ours:
        with pytest.raises(TypeError):
            next(events)
    else:
        assert isinstance(next(events), decoder.RowFailure)


def test_what_was_warned_of_is_in_the_manifest(tiny_config: Make, tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": "Bonn zyzzyva", "answer": "3"} for i in range(3)]
    file = jsonl(tmp_path / "three.jsonl", *rows)
    out = tmp_path / "out"
    config = tiny_config(datasets=file, limit=2, backends="full", max_new_tokens=4)
    go(config, out)
    notices = manifest.read(out)["notices"]
    assert any("2 of 3 problems (the first" in line for line in notices)
    assert set(notices) <= set(Study.open(out).warnings)

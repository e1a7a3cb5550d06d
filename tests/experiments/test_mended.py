"""Faults of sweeps and stores that were found once, each with the smallest case that shows it."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweeping import go

import attention
from experiments.grid.config import Config
from experiments.store import manifest
from experiments.store.files import records
from experiments.store.samples import load
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


def test_what_was_warned_of_is_in_the_manifest(
    tiny_config: Callable[..., Config], tmp_path: Path
) -> None:
    file = tmp_path / "three.jsonl"
    rows = [{"id": str(i), "prompt": "Bonn zyzzyva", "answer": "3"} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    config = tiny_config(datasets=str(file), limit=2, backends="full", max_new_tokens=4)
    go(config, out)
    notices = manifest.read(out)["notices"]
    assert any("2 of 3 problems (the first" in line for line in notices)
    assert set(notices) <= set(Study.open(out).warnings)


def test_a_reader_at_the_instant_of_the_mark_does_not_prevent_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(b"")
    with path.open("rb") as reader, path.open("ab") as writer:
        fcntl.flock(reader.fileno(), fcntl.LOCK_SH)
        marking = threading.Thread(target=records._mark, args=(writer.fileno(),))
        marking.start()
        fcntl.flock(reader.fileno(), fcntl.LOCK_UN)
        marking.join(timeout=20)
        assert records.is_written(path)


@pytest.mark.slow
def test_helper_processes_leave_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "FEW", 1)
    monkeypatch.setattr(load, "_cached", lambda *_: None)
    monkeypatch.setattr(load, "_save", lambda *_: None)
    before = dict(os.environ)
    environments: list[dict[str, str]] = []
    real = load._read_traces

    def watched(*arguments: Any) -> Iterator[Any]:
        for result in real(*arguments):
            environments.append(dict(os.environ))
            yield result

    monkeypatch.setattr(load, "_read_traces", watched)
    study = Study.open(SMALL)
    detectors = study.detectors[:1]
    assert study.samples(detectors, workers=2) == study.samples(detectors)
    assert all(environment == before for environment in environments)

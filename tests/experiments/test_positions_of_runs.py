"""Runs are cut where the model's positions end, and every result says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from saved_models import save_tiny_model
from sweeping import Make, go, jsonl, prepare

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import data
from experiments.grid.config import Config
from experiments.report.report import make_report
from experiments.store.store import Store
from experiments.store.study import Study
from experiments.sweep.estimate import estimate

MOST = 60  # positions; the prompts below take 30 and 50 tokens
PROMPTS = (30, 50)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("short"))
    file = folder / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"max_position_embeddings": MOST}))
    (folder / "generation_config.json").unlink()
    return folder


@pytest.fixture
def config(model: Path, tiny_config: Make, tmp_path: Path) -> Make:
    def make(lengths: tuple[int, ...] = PROMPTS, **overrides: Any) -> Config:
        rows = [{"id": f"p{n}", "prompt": "1 " * n, "answer": "1"} for n in lengths]
        values = {
            "models": str(model),
            "datasets": jsonl(tmp_path / "p.jsonl", *rows),
            "scorer": "exact",  # which is computed a second time
            "backends": "full,sink",
            "budgets": "24",
            "max_new_tokens": 100,
            "detectors": "none",
        }
        return tiny_config(**values | overrides)

    return make


def _lengths(config: Config) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.models[0])
    (items,) = (entry.items for entry in data.load_all(config).values())
    return [len(item.prompt_ids(tokenizer)) for item in items]


def test_runs_end_with_the_positions_and_rows_say_so(config, tmp_path):
    requested = config()
    prompts = _lengths(requested)
    outcome, _ = go(requested, tmp_path / "out")
    study = Study.open(tmp_path / "out", outcome.sweep)
    samples = study.samples([])
    cut = [sample for sample in samples if sample.at_positions]
    assert cut, "a random model goes on to its cap"
    room = dict(zip(("p30", "p50"), (MOST - n for n in prompts), strict=True))
    for sample in samples:
        assert (sample.tokens or 0) <= room[sample.item_id]
        there = sample.tokens == room[sample.item_id] and sample.finish == "length"
        assert sample.at_positions is there
        assert (sample.status == "capped") is (sample.finish == "length")
    stored = {record.id: record.meta["at_positions"] for record in Store(tmp_path / "out")}
    assert stored == {sample.record: sample.at_positions for sample in samples}
    cut = sum(sample.at_positions for sample in samples if sample.backend == "full")
    (notice,) = [n for n in make_report(samples, study.config).notices if " of full on " in n]
    assert notice.startswith(f"{cut} outputs of full on ")
    assert "where the model's positions end" in notice

    again, _ = go(requested, tmp_path / "out")
    assert again.counts.decoded == 0
    longer, _ = go(config(max_new_tokens=1000), tmp_path / "out")
    assert longer.counts.decoded == 0, "what positions cut serves every longer cap"


def test_beyond_positions_is_asked_for_and_marked(config, tmp_path):
    go(config(), tmp_path / "out")
    outcome, _ = go(config(beyond_positions=True, max_new_tokens=70), tmp_path / "out")
    assert outcome.counts.decoded, "the cut ones are decoded on"
    study = Study.open(tmp_path / "out", outcome.sweep)
    beyond = [s for s in study.samples([]) if (s.tokens or 0) > MOST - 30]
    assert beyond
    assert all(sample.at_positions for sample in beyond)
    outcome, _ = go(config(), tmp_path / "out")
    assert outcome.counts.decoded == 0
    samples = Study.open(tmp_path / "out", outcome.sweep).samples([])
    room = dict(zip(("p30", "p50"), (MOST - n for n in _lengths(config())), strict=True))
    assert all((sample.tokens or 0) <= room[sample.item_id] for sample in samples)


def test_a_prompt_that_fills_the_positions_is_refused_by_name(config, tmp_path):
    words = r"prompt of p90 in .*p\.jsonl = '\d+ tokens': expected fewer than the 60 positions"
    for refuse in (prepare, estimate):
        with pytest.raises(InvalidValue, match=words + ".*1 of 2 are too long"):
            refuse(config(lengths=(30, 90)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    prepare(config(lengths=(30, 90), beyond_positions=True), tmp_path / "out")


def test_a_dry_run_reckons_with_the_positions(config, tmp_path):
    prompts = _lengths(config())
    left = sum(MOST - n for n in prompts)
    document = estimate(config(), tmp_path / "out")
    assert document["tokens_at_most"] == 2 * left
    assert {entry["row_tokens"] for entry in document["memory"]} == {MOST}
    document = estimate(config(beyond_positions=True), tmp_path / "out")
    assert document["tokens_at_most"] == 2 * 100 + 2 * 200


def test_a_run_is_cut_and_its_flag_goes_on(config, capsys):
    requested = config()
    command = ["run", "--model", requested.models[0], "--dataset", requested.datasets[0]]
    command += ["--limit", "1", "--max-new-tokens", "80", "--threads", "1", "--json"]
    assert main(command) == 0
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert sample["tokens"] <= MOST - _lengths(requested)[0]
    assert main([*command, "--beyond-positions"]) == 0
    (beyond,) = json.loads(capsys.readouterr().out)["samples"]
    assert beyond["tokens"] >= sample["tokens"]

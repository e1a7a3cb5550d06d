"""A sweep of a model in which some layers hold no keys says of how many its numbers are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from reasoner_training.tokenizer import build_tokenizer
from sweeping import Make, go, jsonl

from experiments.grid.config import Config
from experiments.report.page.page import conditions
from experiments.sweep.estimate import estimate

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.Cache, "get_conv_state"),
    reason="this transformers gives each hybrid its own cache",
)


@pytest.fixture(scope="module")
def config(tiny_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("hybrid")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = transformers.Lfm2ForCausalLM(
        transformers.Lfm2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention", "conv"],
            block_auto_adjust_ff_dim=False,
            initializer_range=0.15,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows = [{"id": f"p{n}", "prompt": "1 " * n, "answer": "1"} for n in (30, 45)]
    return tiny_config(
        models=str(folder),
        datasets=jsonl(folder / "p.jsonl", *rows),
        backends="full,h2o",
        budgets="24",
        max_new_tokens=20,
        detectors="none",
    )


def test_the_manifest_and_the_page_count_layers_with_keys(config: Config, tmp_path: Path) -> None:
    outcome, _ = go(config, tmp_path / "store")
    assert outcome.counts.failed == 0
    (file,) = (tmp_path / "store" / "sweeps").glob("*.json")
    about = json.loads(file.read_text())
    (model,) = about["models"]
    assert (model["key_layers"], model["layers"]) == (1, 3)
    assert "of the 1 of its 3 layers that hold keys" in conditions(about)


def test_a_dry_run_counts_keys_of_those_layers_alone(config: Config, tmp_path: Path) -> None:
    memory = {row["backend"]: row for row in estimate(config, tmp_path / "none")["memory"]}
    full, h2o = memory["full"], memory["h2o"]
    each = 2 * 2 * 8 * 4  # keys and values of two heads of eight numbers in float32
    assert full["row_tokens"] > 24
    assert full["kv_bytes_per_row"] == full["row_tokens"] * each
    assert h2o["kv_bytes_per_row"] == 24 * each

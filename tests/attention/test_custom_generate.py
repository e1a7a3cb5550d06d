"""The folder for transformers' `custom_generate`: its tokens, its refusals, the model behind it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, dynamic_module_utils

import attention
from attention.testing.driving import follow, left_padded, text
from tests.attention.oracles.models import tiny_model

FOLDER = attention.__path__[0] + "/hub"
HERE = {"custom_generate": FOLDER, "trust_remote_code": True}
PROMPTS = [text(20), text(7, seed=1), text(26, seed=2)]


@pytest.fixture(autouse=True)
def _own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers copies the folder's file here and not where a user has such copies.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))


def generated(m: Any, prompts: Any = PROMPTS, **call: Any) -> Any:
    ids, mask = left_padded(prompts)
    torch.manual_seed(0)
    call = {"input_ids": ids, "attention_mask": mask, "do_sample": False, **call}
    return m.generate(**call, max_new_tokens=12, eos_token_id=53)  # which is no token


def test_tokens_are_those_of_a_block_and_of_each_row_alone() -> None:
    m, quest = tiny_model(), attention.Quest(budget=16, page=4, dense_layers=0)
    for backend, call in {
        attention.Full(): {"backend": "full"},
        attention.H2O(budget=15): {"backend": "h2o", "budget": 15},
        quest: {"backend": "quest(budget=16,page=4)", "dense_layers": 0},
    }.items():
        got = generated(m, **HERE, **call)
        assert torch.equal(got, generated(m)) == (backend.name == "full")
        with backend.on(m) as cache:
            for mode in ({}, {"num_beams": 3}, {"do_sample": True, "top_p": 0.9, "top_k": 0}):
                want = generated(m, past_key_values=cache.new(), **mode)
                assert torch.equal(generated(m, **HERE, **call, **mode), want)
            for prompt, answer in zip(PROMPTS, got[:, -12:], strict=True):
                logits = follow(m, cache.new(), [prompt], answer[None, :-1])[0]
                assert torch.equal(logits.argmax(-1), answer)


def test_what_does_not_fit_is_refused_and_the_model_restored() -> None:
    m = tiny_model()
    for says, call in {
        "did you mean 'h2o'": {"backend": "h2"},
        "parameter = 'page'.* a parameter of h2o": {"backend": "h2o", "page": 4},
        "past_key_values = 'DynamicCache'": {"backend": "full", "past_key_values": DynamicCache()},
        "drafts under h2o": {"backend": "h2o(budget=15)", "prompt_lookup_num_tokens": 3},
    }.items():
        with pytest.raises(attention.InvalidValue, match=says):
            generated(m, PROMPTS[:1], **HERE, **call)
        assert m.config._attn_implementation == "sdpa"


def test_a_model_may_be_loaded_from_a_folder_with_it(tmp_path: Path) -> None:
    m, call = tiny_model(dtype=torch.float32), {"backend": "h2o", "budget": 15}
    m.save_pretrained(tmp_path)
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(generated(loaded, **call), generated(m, **HERE, **call))

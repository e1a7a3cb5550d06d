"""A real model of a GGUF file: what it says under full attention is what transformers says.

Its file is looked for in the folder REAL_MODELS, or where `scripts/real_models` puts it.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest
import torch

import attention
import lil
from experiments.grid import models

FOLDER = os.environ.get("REAL_MODELS") or Path(platformdirs.user_cache_dir("lil"), "gguf")
FILE = Path(FOLDER, "smollm2.gguf")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="needs smollm2.gguf (scripts/real_models)"),
]

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colors.",
    "Tom has 3 boxes with 12 pencils each and gives 7 away. How many are left?",
    "Write a Python function that adds two numbers.",
    "Count from 1 to 20.",
    "Is 91 a prime number? Think step by step.",
)


@pytest.fixture(scope="module")
def loaded() -> models.LoadedModel:
    pytest.importorskip("gguf", reason="needs the package gguf")
    return models.load(models.find(str(FILE)), "float32", "cpu")


def prompts(loaded: models.LoadedModel) -> list[list[int]]:
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [
        loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        for chat in chats
    ]


def test_greedy_texts_are_those_of_transformers(loaded):
    every = prompts(loaded)
    assert len({tuple(ids) for ids in every}) == len(QUESTIONS)
    full = attention.get("full")
    ours = lil.decode(loaded.model, loaded.tokenizer, every, backend=full, max_new_tokens=32)
    texts = []
    for ids, trace in zip(every, ours, strict=True):
        row = torch.tensor([ids])
        with torch.no_grad():
            output = loaded.model.generate(
                row, attention_mask=torch.ones_like(row), max_new_tokens=32, do_sample=False
            )
        assert list(trace.new_ids) == output[0, len(ids) :].tolist(), QUESTIONS[len(texts)]
        texts.append(loaded.tokenizer.decode(trace.new_ids, skip_special_tokens=True))
    assert "Paris" in texts[0]


def test_a_budget_binds_and_texts_stay_english(loaded):
    (trace,) = lil.decode(
        *(loaded.model, loaded.tokenizer, prompts(loaded)[5:]),
        backend=attention.get("h2o", budget=64),
        max_new_tokens=60,
    )
    assert trace.keys_read_max == 64
    text = loaded.tokenizer.decode(trace.new_ids)
    assert len(set(text.split()) & {"is", "a", "prime", "number", "the", "to", "of"}) >= 4

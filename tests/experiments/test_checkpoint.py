"""The committed checkpoint: its size, its vocabulary, and a sample of problems that it solves."""

from __future__ import annotations

from typing import Any

import pytest
from reasoner_training.tokenizer import pieces, richer_vocabulary
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.grid.answers import last_boxed
from experiments.reasoner import checkpoint_path, problem
from lil import decode, token_bytes


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    path = checkpoint_path()
    return (
        AutoModelForCausalLM.from_pretrained(path).eval(),
        AutoTokenizer.from_pretrained(path),
    )


def test_tokenizer_is_the_language(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    assert token_bytes(tokenizer) == [piece.encode() for piece in richer_vocabulary()]
    text = problem("hard", "study", 1).prompt
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == pieces(text)


def test_solves_a_sample(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    drawn = [problem("easy", "test", 1000 + i) for i in range(8)]
    traces = decode(model, tokenizer, [p.prompt for p in drawn], max_new_tokens=500)
    assert sum(last_boxed(t.text) == p.answer for p, t in zip(drawn, traces, strict=True)) >= 7
    assert sum(t.finish == "eos" for t in traces) >= 7

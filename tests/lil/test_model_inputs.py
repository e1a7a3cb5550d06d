"""Inputs of a model: begin tokens, chat templates, and a warning for settings that are left out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tiny_models import build_model, build_tokenizer
from tokenizers import processors
from transformers import LlamaConfig

import lil
from lil.decoding.options import encode, positions_of


@pytest.mark.parametrize(
    ("before", "behind", "texts"),
    [
        ("<eos>", "", {" 3": [0, 4], "<eos> 3": [0, 4], "<eos><eos> 3": [0, 0, 4]}),
        # More than one token in front, and one behind.
        (
            " Anna has",
            " word0",
            {" 3": [2, 3, 4, 7], " Anna has 3": [2, 3, 4, 7], " Anna": [2, 3, 2, 7]},
        ),
    ],
)
def test_what_a_text_begins_with_is_not_put_before_it_again(
    before: str, behind: str, texts: dict[str, list[int]]
) -> None:
    tokenizer = build_tokenizer()
    first, last = (tokenizer(x)["input_ids"] for x in (before, behind))
    ids = {f"[{i}]": (f"[{i}]", i) for i in (*first, *last)}
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*(f"[{i}]" for i in first), "$A", *(f"[{i}]" for i in last)]),
        special_tokens=[
            {"id": name, "ids": [i], "tokens": [tokenizer.convert_ids_to_tokens(i)]}
            for name, (_, i) in ids.items()
        ],
    )
    assert {text: encode(tokenizer, text) for text in texts} == texts


def test_what_a_generation_config_has_and_we_leave_out_is_said(tokenizer: Any) -> None:
    model = build_model("llama")
    model.generation_config.repetition_penalty = 1.4
    model.generation_config.min_new_tokens = 5
    with pytest.warns(UserWarning, match=r"repetition_penalty=1\.4, min_new_tokens=5"):
        lil.decode(model, tokenizer, [[5]], max_new_tokens=1)
    model.generation_config.min_new_tokens = None
    asked = [lil.penalties.get("repetition", penalty=1.4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lil.decode(model, tokenizer, [[5]], max_new_tokens=1, penalties=asked)


@pytest.mark.parametrize(
    ("rope", "most"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        ({"rope_type": "dynamic", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "default"}, 2048),
    ],
)
def test_positions_are_those_of_the_stretched_rope(rope: dict[str, Any], most: int) -> None:
    config = LlamaConfig(max_position_embeddings=2048)
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    assert positions_of(config) == most

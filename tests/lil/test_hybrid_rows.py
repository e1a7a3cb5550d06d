"""Rows of models in which some layers keep another state than keys: batches, costs, actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from acting_rows import CUE, CUE_IDS, PROMPTS, backend, fires, run
from tiny_models import SIZES

from lil.detectors import Answer

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.Cache, "get_conv_state"),
    reason="this transformers gives each hybrid its own cache",
)


@pytest.fixture(scope="module")
def lfm2() -> Any:
    torch.manual_seed(11)
    kinds = ["conv", "full_attention", "full_attention"]
    config = transformers.Lfm2Config(**SIZES, layer_types=kinds, block_auto_adjust_ff_dim=False)
    return transformers.Lfm2ForCausalLM(config).double().eval()


@pytest.mark.parametrize("name", ["h2o", "quest"])
def test_a_batch_is_its_rows_alone(lfm2, tokenizer, name):
    options = {"backend": backend(name), "max_new_tokens": 40}
    alone = run(lfm2, tokenizer, batch_size=1, **options)
    for size in (2, 4):  # rows take free places, and places are dropped
        together = run(lfm2, tokenizer, batch_size=size, **options)
        for left, other in zip(alone, together, strict=True):
            assert left.new_ids == other.new_ids
            assert left.keys_read_max == other.keys_read_max <= (24 if name == "h2o" else 52)


@pytest.mark.parametrize("what", ["densify", Answer(cue=CUE, tokens=20)], ids=str)
def test_what_goes_back_restores_its_states(lfm2, tokenizer, what):
    """A cut row goes on as one does whose prompt is what was kept."""
    action = fires(20, what, anchor=10, cut=10)
    (trace, *_) = run(lfm2, tokenizer, [action], batch_size=2)
    assert trace.action is not None
    assert (trace.action["kept"], trace.action["dropped"]) == (10, 10)
    cued = trace.new_ids[: 10 + trace.action["cue_tokens"]]
    assert list(cued[10:]) == (CUE_IDS if isinstance(what, Answer) else [])
    start = [*PROMPTS[0], *cued]
    ids = torch.tensor([start])
    more = len(trace.new_ids) - len(cued)
    want = lfm2.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=more, do_sample=False
    )
    assert trace.new_ids[len(cued) :] == tuple(want[0, len(start) :].tolist())

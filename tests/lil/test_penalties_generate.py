"""Penalties in transformers' `generate()`, with batches, beams and padding, and in `decode`."""

from __future__ import annotations

import pytest
import torch
from penalty_cases import CASES, PAD, build, expected
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import lil
from tests.sampling import some_slow

PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 12, 13, 12, 13]]
WIDTH = max(len(row) for row in PROMPTS)
IDS = torch.tensor([[PAD] * (WIDTH - len(row)) + row for row in PROMPTS])
MASK = torch.tensor([[0] * (WIDTH - len(row)) + [1] * len(row) for row in PROMPTS])


class Oracle(LogitsProcessor):
    """A case's oracle as a stateless processor that knows its prompts."""

    def __init__(self, case: str, include_prompt: bool) -> None:
        self.case, self.include_prompt = case, include_prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        beams = len(input_ids) // len(PROMPTS)
        histories = [
            (PROMPTS[r // beams] if self.include_prompt else []) + row[WIDTH:]
            for r, row in enumerate(input_ids.tolist())
        ]
        return expected(self.case, histories, scores).to(scores.dtype)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("case", [case for case in CASES if case != "lz default"])
def test_generate_with_padding_and_beams_equals_the_oracle(case, beams, qwen):
    include = beams == 3
    options = {"attention_mask": MASK, "max_new_tokens": 14, "do_sample": False}
    options |= {"num_beams": beams, "pad_token_id": PAD}

    def run(processor: LogitsProcessor) -> Tensor:
        return qwen.generate(IDS, logits_processor=LogitsProcessorList([processor]), **options)

    penalty = build(case, include_prompt=include).with_mask(MASK)
    wanted = run(Oracle(case, include))
    for _ in range(2):  # one object serves one generation after another
        assert torch.equal(run(penalty), wanted)
    assert not torch.equal(wanted, qwen.generate(IDS, **options))


@pytest.mark.parametrize("case", ["lz derived", "dry", "presence_window"])
def test_decode_equals_generate_row_by_row(case, qwen, tokenizer):
    prompts = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30]]
    template = build(case)
    traces = lil.decode(
        qwen, tokenizer, prompts, penalties=[template], max_new_tokens=20, batch_size=3
    )
    for prompt, trace in zip(prompts, traces, strict=True):
        ids = torch.tensor([prompt])
        processors = LogitsProcessorList([template.clone()])
        out = qwen.generate(ids, logits_processor=processors, max_new_tokens=20, do_sample=False)
        assert list(trace.new_ids) == out[0, len(prompt) :].tolist()


#: Strong enough to change what the tiny models say.
STRONG = {
    "lz": {"alpha": 4.0, "buffer": 3},
    "frequency": {"strength": 3.0},
    "presence": {"strength": 3.0},
    "dry": {"multiplier": 3.0},
    "no_repeat_ngram": {"ngram_size": 2},
    "nowait": {"words": [], "tokens": range(12, 20)},
    "presence_window": {"strength": 3.0, "window": 15},
    "repetition": {"penalty": 4.0},
}


@pytest.mark.parametrize("name", STRONG)
@pytest.mark.parametrize("drafts", some_slow(["prompt lookup", "assistant"], 1))
def test_drafts_change_no_token(name, drafts, qwen, llama):
    """Drafts come at widths n, n + 1, ..., and again at n: every call has its ids' own numbers."""
    assert sorted(STRONG) == lil.penalties.names()
    ids = torch.tensor([[12, 13, 14, 12, 13, 14, 12, 13]])
    options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": PAD}
    drafting = {"assistant_model": llama} if drafts == "assistant" else {}
    if not drafting:
        drafting = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1}
    penalty = lil.penalties.get(name, **STRONG[name])

    def run(**more: object) -> Tensor:
        return qwen.generate(
            ids, logits_processor=LogitsProcessorList([penalty]), **options, **more
        )

    wanted = run()
    for _ in range(2):  # one object serves one generation after another
        assert torch.equal(run(**drafting), wanted)
    assert not torch.equal(wanted, qwen.generate(ids, **options))

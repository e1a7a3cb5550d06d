"""Hidden states computed again from a trace are those the decode had."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tiny_models import WORDS

import lil
from attention import H2O, Backend, Full, Quest
from lil.chopper.chunks import chunks
from lil.chopper.features import chunk_states
from lil.hidden_states import HiddenStates

BLANK = WORDS.index("\n\n")


@pytest.fixture(scope="module")
def chatty(qwen: torch.nn.Module) -> torch.nn.Module:
    """The tiny model with a liking for blank lines."""
    model = copy.deepcopy(qwen)
    with torch.no_grad():
        model.lm_head.weight[BLANK] *= 2.0
    return model


def watched(
    model: torch.nn.Module, tokenizer: object, prompts: list[list[int]], backend: Backend
) -> tuple[list[lil.Trace], list[torch.Tensor]]:
    """Decode one prompt at a time; each chunk's state as the step behind it saw it."""
    traces, states = [], []
    for prompt in prompts:
        seen: list[torch.Tensor] = []
        with HiddenStates(model, [-2]) as reading:
            options = {"backend": backend, "max_new_tokens": 24, "temperature": 1.0}
            options["on_step"] = partial(_remember, reading, seen)
            requests = [lil.Request(prompt, item_id=str(prompt))]
            (trace,) = lil.decode(model, tokenizer, requests, **options)
        traces.append(trace)
        # The step that chose token t + 1 has read t generated tokens.
        ends = [chunk.end for chunk in chunks(trace.text_pieces)]
        states.append([seen[end] if end < len(seen) else None for end in ends])
    return traces, states


def _remember(reading: HiddenStates, seen: list[torch.Tensor], _: int) -> None:
    seen.append(reading[-2][0])


@pytest.mark.parametrize(
    "backend", [Full(), H2O(budget=12), Quest(budget=8, page=4, dense_layers=1)]
)
def test_states_are_those_of_the_decode(
    chatty: torch.nn.Module, tokenizer: object, backend: Backend
) -> None:
    prompts = [[2, 3, 4], [9, 10, 11, 12, 13, 14, 15], [20]]
    traces, expected = watched(chatty, tokenizer, prompts, backend)
    lasts = [chunks(trace.text_pieces)[-1].end for trace in traces]
    assert max(lasts) > min(lasts)
    for batch_size in (2, 3):  # ragged, and with a batch behind the first
        tokens: list[int] = []
        states = chunk_states(chatty, backend, traces, -2, batch_size, tokens.append)
        assert sum(tokens) == sum(lasts)
        compared = 0
        for trace, read, known in zip(traces, states, expected, strict=True):
            ends = [chunk.end for chunk in chunks(trace.text_pieces)]
            assert read.shape == (len(ends), chatty.config.hidden_size)
            for left, right in zip(read, known, strict=True):
                if right is not None:  # a state behind the last token was never computed
                    assert torch.allclose(left, right.float(), atol=1e-5)
                    compared += 1
        assert compared >= 5


def test_a_trace_without_chunks_has_no_states(chatty: torch.nn.Module, tokenizer: object) -> None:
    (trace,) = lil.decode(chatty, tokenizer, [[2, 3]], max_new_tokens=1)
    (states,) = chunk_states(chatty, Full(), [trace], -1)
    assert states.shape == (len(chunks(trace.text_pieces)), chatty.config.hidden_size)
    assert chunk_states(chatty, Full(), [], -1) == []

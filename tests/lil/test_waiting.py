"""Nothing waits for the device in decode steps, and a forward that no graph takes is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penalty_cases import CASES
from penalty_cases import build as penalty
from tiny_models import PROMPTS, WORDS, build_model, record, requests_of
from torch import Tensor, nn

import lil
from lil.decoding.compiling import CompileWarning
from tests.attention.examples import OF_THREE
from tests.graphs import on_a_cpu
from tests.sampling import some_slow
from tests.waits import watched

#: Rows end at different steps, one when its prompt has been read.
CAPS = [42, 7, 1, 30]
DETECTOR = lil.Either([lil.Stall(longest=5, before=1, drift=0.0, level=7.0), lil.Budget(60)])


def same(model: Any, tokenizer: Any, **options: Any) -> None:
    """A run in which whatever waits for the device raises has the traces of one that may wait."""
    options = {"batch_size": 3, "engine": "torch", "check_every": 10} | options
    rows = requests_of(PROMPTS, max_new_tokens=CAPS)
    plain = lil.decode(model, tokenizer, rows, **options)
    with watched() as guard:
        traces = lil.decode(model, tokenizer, rows, **options)
    assert guard.steps > 20
    assert [record(trace) for trace in traces] == [record(trace) for trace in plain]
    assert [trace.tokens for trace in traces] == CAPS


@pytest.mark.parametrize("backend", some_slow(OF_THREE, {0, 1, 4, 11, 14}))
def test_no_method_waits(backend, qwen, tokenizer):
    """Rows join and leave: from one row to three."""
    same(qwen, tokenizer, backend=backend)


@pytest.mark.parametrize("cases", some_slow([[*CASES], *([case] for case in CASES)], 1))
def test_no_penalty_waits(cases, qwen, tokenizer):
    penalties = [penalty(case) for case in cases]
    probes = [lil.Margin(below=0.9, end=WORDS[7])]
    same(qwen, tokenizer, penalties=penalties, probes=probes, detectors=[DETECTOR])


class _Item(nn.Module):
    """It leaves numbers as they are, so that a probe takes the model."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.full_like(x, x.sum().item()) * 0


class _Dropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [(_Item, r"item.* waits for the device"), (_Dropout, r"rand_like.* draws random numbers")],
)
def test_a_forward_that_no_graph_takes_runs_and_is_named(module, reason, tokenizer):
    model = build_model("qwen3", layers=1)
    model.model.norm = nn.Sequential(model.model.norm, module())
    with on_a_cpu(), pytest.warns(CompileWarning, match=reason) as warned:
        traces = lil.decode(model, tokenizer, PROMPTS, max_new_tokens=3, compile="on")
    assert len(warned) == 1
    assert [trace.tokens for trace in traces] == [3] * len(PROMPTS)

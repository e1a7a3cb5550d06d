"""Decode steps on an accelerator: nothing waits for the device, and graphs give the same traces.

Graphs are those of `tests.graphs`, which do on a CPU what CUDA graphs do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from penalty_cases import CASES
from penalty_cases import build as penalty
from tiny_models import SIZES, WORDS, near, requests_of
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

import attention
import lil
from attention.patching.compiled import compiled
from lil.decoding.compiling import CompileWarning
from tests.attention.examples import BACKENDS
from tests.graphs import on_a_cpu
from tests.sampling import some_slow
from tests.waits import watched

#: Ragged prompts and caps: rows end at different steps, one when its prompt has been read.
PROMPTS = [[5, 6, 7], [9] * 12, [30], [1, 2, 3, 4, 5, 6, 7, 8]]
CAPS = [42, 7, 1, 30]
DETECTOR = lil.Either([lil.Stall(longest=5, before=1, drift=0.0, level=7.0), lil.Budget(60)])


def build(layers: int = 2) -> Any:
    torch.manual_seed(11)
    sizes = {**SIZES, "num_hidden_layers": layers}
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(torch.float64).eval()


@pytest.fixture(scope="module")
def small() -> Any:
    return build()


@pytest.fixture(autouse=True)
def _graphs() -> Iterator[None]:
    with on_a_cpu():
        yield


def record(trace: lil.Trace) -> dict[str, Any]:
    """All a trace holds but seconds; sums over hidden states up to rounding."""
    checks = [check._replace(seconds=None)._asdict() for check in trace.checks]
    fields = trace.to_dict() | {"checks": checks, "prefill_sec": None, "decode_sec": None}
    return fields | {name: near(fields[name]) for name in ("signals", "evidence")}


def exact(trace: lil.Trace) -> dict[str, Any]:
    return record(trace) | {name: trace.to_dict()[name] for name in ("signals", "evidence")}


def same(model: Any, tokenizer: Any, compile_: str = "on", **options: Any) -> list[lil.Trace]:
    """The traces of the model as it is; those of graphs are the same but for seconds."""
    options = {"batch_size": 3, "engine": "torch", "check_every": 10} | options
    rows = requests_of(PROMPTS, max_new_tokens=CAPS)
    plain = lil.decode(model, tokenizer, rows, **options)
    with warnings.catch_warnings():  # a step that is not captured fails the test
        warnings.simplefilter("error", CompileWarning)
        with watched() as guard:
            traces = lil.decode(model, tokenizer, rows, compile=compile_, **options)
    assert guard.steps > 20
    assert [exact(trace) for trace in traces] == [record(trace) for trace in plain]
    return plain


METHODS = [(backend, mode) for mode in ("on", "off") for backend in BACKENDS]
QUICK = {0, 4, 11, len(BACKENDS) + 1, len(BACKENDS) + 14}


@pytest.mark.parametrize(("backend", "compile_"), some_slow(METHODS, QUICK))
def test_every_method_decodes_the_same_and_waits_for_nothing(backend, compile_, small, tokenizer):
    """Rows join and leave: from one row to three, of which four are captured."""
    traces = same(small, tokenizer, compile_, backend=backend)
    assert [trace.tokens for trace in traces] == CAPS


@pytest.mark.parametrize("compile_", some_slow(["on", "off"], 1))
@pytest.mark.parametrize("cases", some_slow([[*CASES], *([case] for case in CASES)], 1))
def test_every_penalty_decodes_the_same(cases, compile_, small, tokenizer):
    penalties = [penalty(case) for case in cases]
    probes = [lil.Margin(below=0.9, end=WORDS[7])]
    same(small, tokenizer, compile_, penalties=penalties, probes=probes, detectors=[DETECTOR])


def test_weights_are_the_models_own(tokenizer):
    """Changed in place they are read as they are; in other memory they are captured anew."""
    model = build(layers=1)
    before, mlp = same(model, tokenizer), model.model.layers[0].mlp
    with torch.no_grad():
        mlp.up_proj.weight.mul_(-1)
    changed = same(model, tokenizer)
    assert changed != before
    mlp.down_proj.weight.data = -mlp.down_proj.weight.data
    assert same(model, tokenizer) != changed


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
    model = build(layers=1)
    model.model.norm = nn.Sequential(model.model.norm, module())
    with pytest.warns(CompileWarning, match=reason) as warned:
        traces = lil.decode(model, tokenizer, PROMPTS, max_new_tokens=3, compile="on")
    assert len(warned) == 1
    assert [trace.tokens for trace in traces] == [3] * len(PROMPTS)


def test_an_error_in_attention_is_raised_as_it_is(small):
    with attention.get("full").on(small) as cache:
        step = compiled(small, cache)
        ids = torch.tensor([[5, 6, 7]])
        with torch.no_grad():
            small(ids, past_key_values=cache)
            with pytest.raises(attention.InvalidValue, match=r"position_ids.*row 0"):
                step(cache.clone(), ids[:, :1], torch.tensor([[4]]))
    with pytest.raises(attention.InvalidValue, match="closed"):
        step(cache, ids[:, :1], torch.tensor([[3]]))

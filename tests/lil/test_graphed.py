"""Decode steps replayed as graphs: the same traces for all methods, penalties and detectors.

Graphs are those of `tests.graphs`, which do on a CPU what CUDA graphs do.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from penalty_cases import CASES
from penalty_cases import build as penalty
from test_waits import CLASSIFIER, DETECTORS, record
from tiny_models import SIZES, WORDS, Endings, asked
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

import attention
import lil
from attention.patching import graphed
from attention.patching.compiled import compiled
from attention.patching.decode_step import NotCompiled
from attention.patching.graph_split import cut
from attention.patching.graphed import GraphedStep, padded
from lil.decoding.compiling import CompileWarning
from tests.attention.examples import BACKENDS
from tests.attention.zoo import FAMILIES, config
from tests.graphs import on_a_cpu
from tests.sampling import some_slow
from tests.waits import watched

#: Ragged prompts and caps: rows end apart and are replaced.
PROMPTS = [[5, 6, 7], [9] * 12, [30], [1, 2, 3, 4, 5, 6, 7, 8]]
CAPS = [42, 7, 1, 30]
#: Longer than the budgets of `BACKENDS`, so that short outputs are sparse from the first on.
LONG = [[5, 6, 7, 8] * 6, [9, 10, 11] * 8, [30, 4] * 11]
#: The detectors of `lil`, with numbers that stop outputs of some tokens.
EARLY: dict[str, list[lil.Detector]] = {
    "none": [],
    "guardian": [lil.Guardian(f=4, rate=9.0)],
    "cycle": [lil.Cycle(max_period=4, min_tokens=2, repeats=2, outside=0)],
    "budget": [lil.Budget(5)],
    "chopper": [lil.Chopper(CLASSIFIER, short=1)],
    "recurrence": [lil.Recurrence(k=1, before=1, run=2, outside=0)],
    "stall": [lil.Stall(longest=2, before=1, drift=-1.0, level=0.1)],
    "margin": [lil.Margin(below=9.0, end=WORDS[7])],
    "either": [lil.Either([lil.Budget(4), lil.Margin(below=0.5, end=WORDS[7])])],
    "both": [lil.Both([lil.Margin(below=9.0, end=WORDS[7]), lil.Budget(3)])],
}
PENALTIES = ["none", *CASES]


@dataclass(frozen=True, kw_only=True)
class Often(Endings):
    """A penalty that ends a chunk at every third token of a row: most detectors look there."""

    name: ClassVar[str] = "often"

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        ends = super().penalise(history, 0 * lengths, scores)
        return torch.where(lengths[:, None] % 3 == 0, ends, scores)


def build(seed: int = 11, layers: int = 2) -> Any:
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_hidden_layers": layers}
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(torch.float64).eval()


@pytest.fixture(scope="module")
def small() -> Any:
    return build()


@pytest.fixture(autouse=True)
def _graphs() -> Iterator[None]:
    with on_a_cpu():
        yield


def step_of(model: Any, **more: Any) -> GraphedStep:
    with attention.get("full").on(model) as cache:
        step = compiled(model, cache, **more)
    assert isinstance(step, GraphedStep)
    return step


def replayed(model: Any, tokenizer: Any, rows: Any, **options: Any) -> list[lil.Trace]:
    """Traces of graphs; a step that is not captured fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        return lil.decode(model, tokenizer, rows, compile="on", **options)


def same(model: Any, tokenizer: Any, **options: Any) -> list[lil.Trace]:
    """The traces of the model as it is; those of graphs are the same but for seconds."""
    given = {"batch_size": 3, "engine": "torch", "check_every": 10} | options
    rows = given.pop("rows", None) or asked(PROMPTS, max_new_tokens=CAPS)
    plain = lil.decode(model, tokenizer, rows, **given)
    traces = replayed(model, tokenizer, rows, **given)
    assert [record(one) for one in traces] == [record(one) for one in plain]
    return plain


# ---------------------------------------------------------------- the same tokens


@pytest.mark.parametrize(
    "backend", some_slow(BACKENDS, {0, 1, 4, 11, 14, 22}), ids=lambda b: b.name
)
def test_every_method_decodes_the_same(backend, small, tokenizer):
    """Rows join and leave: from one row to three, of which four are captured."""
    traces = same(small, tokenizer, backend=backend)
    assert [trace.tokens for trace in traces] == CAPS
    assert step_of(small).sizes == [1, 2, 4]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_every_engine_of_a_cpu_decodes_the_same(engine, small, tokenizer):
    same(small, tokenizer, engine=engine, backend=attention.H2O(budget=16))


@pytest.mark.parametrize("cases", some_slow([[*CASES], *([case] for case in CASES)], 1))
def test_every_penalty_decodes_the_same(cases, small, tokenizer):
    same(small, tokenizer, penalties=[penalty(case) for case in cases])


@pytest.mark.parametrize("name", some_slow(DETECTORS, {3, 8}))
def test_every_detector_stops_where_it_stopped(name, small, tokenizer):
    """Those that read hidden states get them from the pieces."""
    rows = asked(PROMPTS, max_new_tokens=[63, 45, 1, 30])
    options = {"penalties": [Endings()], "detectors": [DETECTORS[name]], "batch_size": 2}
    traces = same(small, tokenizer, rows=rows, **options)
    assert name in {trace.finish for trace in traces}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 3},
        {
            "detectors": [lil.Budget(20, on_stop="densify")],
            "backend": attention.Quest(budget=8, page=4, dense_layers=0),
        },
        {
            "detectors": [lil.Budget(9, on_stop=lil.detectors.Answer(cue=" Anna", tokens=3))],
            "backend": attention.H2O(budget=16),
        },
        {"probes": [DETECTORS["chopper"], DETECTORS["margin"]]},
    ],
    ids=["sampled", "densified", "answered", "probed"],
)
def test_what_else_is_asked_for_stays_the_same(options, small, tokenizer):
    same(small, tokenizer, **options)


@pytest.mark.parametrize("family", some_slow(FAMILIES, {FAMILIES.index("phi3")}))
@pytest.mark.parametrize("experts", some_slow(["grouped_mm", "batched_mm"], 1))
def test_every_family_decodes_the_same(family, experts):
    """Mixtures of experts too, where their experts are computed without a look at values."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config(family)).eval()
    if "moe" in family or family == "gpt_oss":
        model.set_experts_implementation(experts)
    ids = torch.randint(5, model.config.vocab_size, (3, 12))
    with torch.no_grad(), attention.Full().on(model) as cache:
        step = compiled(model, cache)
        model(ids[:, :9], past_key_values=cache)
        twin = cache.clone()
        for column in range(9, 12):
            newest, at = ids[:, column, None], cache.seen[:, None]
            given = {"input_ids": newest, "position_ids": at, "past_key_values": cache}
            torch.testing.assert_close(step(twin, newest, at), model(**given).logits[:, -1])


def test_experts_that_are_looped_over_run_as_they_are():
    model = AutoModelForCausalLM.from_config(config("qwen3_moe")).eval()
    model.set_experts_implementation("eager")
    with attention.Full().on(model) as cache, pytest.raises(NotCompiled, match="data-dependent"):
        compiled(model, cache)


@pytest.mark.parametrize("rows", [(9, 3, 9)])
def test_rows_are_padded_to_a_few_numbers(rows, small, tokenizer):
    prompts = [[i + 1, 2 * i + 1] for i in range(rows[0])]
    caps = [3 + 2 * (i % 4) for i in range(rows[0])]
    same(small, tokenizer, rows=asked(prompts, max_new_tokens=caps), batch_size=rows[2])
    assert {16, 8, 4} <= set(step_of(small).sizes)


def test_numbers_of_rows():
    sizes = [padded(rows) for rows in range(1, 257)]
    assert sizes == sorted(sizes)
    assert sorted(set(sizes))[:10] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 80]
    assert all(rows <= size < 2 * rows or size == 1 for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 20


@pytest.mark.parametrize(
    ("first", "share"),
    [*(pytest.param(first, 3, marks=pytest.mark.slow) for first in range(3)), (0, 121)],
)
def test_every_method_penalty_and_detector_decodes_the_same(
    first, share, small, tokenizer, record_property
):
    """The product in three parts, or one in so many, never the same of an inner one's values."""
    cases = list(product(BACKENDS, PENALTIES, EARLY))
    assert len(cases) == len(BACKENDS) * 11 * 10
    assert sorted(EARLY) == sorted([*lil.detectors.names(), "none"])
    taken = cases[first::share]
    stopped = set()
    rows = asked(LONG, max_new_tokens=[8, 5, 6])
    for backend, named, detector in taken:
        penalties = [Often(), *([] if named == "none" else [penalty(named)])]
        options = {"backend": backend, "penalties": penalties, "detectors": EARLY[detector]}
        traces = same(small, tokenizer, rows=rows, batch_size=2, **options)
        stopped |= {trace.finish for trace in traces}
    record_property("cases", len(taken))
    assert len(taken) == (24 if share == 121 else 953 + (first == 0))
    assert len(stopped) > 4
    if share == 3:
        assert stopped == {*lil.detectors.names(), "length"}


# ---------------------------------------------------------------- and nothing waits


@pytest.mark.parametrize("backend", some_slow(BACKENDS, {14}), ids=lambda b: b.name)
def test_no_step_of_graphs_waits(backend, small, tokenizer):
    """Captured, replayed and looked at one step late, as on an accelerator."""
    penalties, detectors = [penalty(case) for case in CASES], [DETECTORS["either"]]
    options = {"backend": backend, "penalties": penalties, "detectors": detectors}
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    given = {"engine": "torch", "batch_size": 2, "temperature": 1.5, "top_k": 40, **options}
    plain = lil.decode(small, tokenizer, rows, **given)
    with watched() as guard:
        traces = replayed(small, tokenizer, rows, **given)
    assert [trace.new_ids for trace in traces] == [trace.new_ids for trace in plain]
    assert guard.steps > 40


# ---------------------------------------------------------------- weights, errors, what is kept


def test_weights_are_the_models_own(tokenizer):
    """Changed in place they are read as they are; in other memory they are captured anew."""
    model = build(seed=12, layers=1)
    before = same(model, tokenizer)
    step, mlp = step_of(model), model.model.layers[0].mlp
    pieces = len(step.graphs.pieces)
    with torch.no_grad():
        mlp.up_proj.weight.mul_(-1)
    changed = same(model, tokenizer)
    assert changed != before
    assert len(step.graphs.pieces) == pieces
    mlp.down_proj.weight.data = -mlp.down_proj.weight.data
    again = same(model, tokenizer)
    assert again != changed
    assert len(step.graphs.pieces) == 2 * pieces
    model.model.norm.weight = nn.Parameter(-model.model.norm.weight.detach())
    same(model, tokenizer)
    assert len(step.graphs.pieces) == 3 * pieces
    assert step_of(model) is step


def test_other_kinds_of_weights_are_another_step(tokenizer):
    model = build(seed=12, layers=1)
    step = step_of(model)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attention.get("full").on(model) as cache:
        model(ids, past_key_values=cache)
        name = "model.norm.weight"
        model.model.norm.weight = nn.Parameter(model.model.norm.weight.detach().float())
        with pytest.raises(NotCompiled, match=f"{name} was replaced"):
            step(cache, ids[:, :1], torch.tensor([[3]]))
    model = model.float()
    step = step_of(model)
    assert list(graphed._KEPT[model].values()) == [step]  # and the other one's memory is free
    assert lil.decode(model, tokenizer, PROMPTS, max_new_tokens=9, compile="kept")


def test_a_step_lives_as_long_as_its_model():
    model = build(layers=1)
    step = weakref.ref(step_of(model))
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert (kept(), step()) == (None, None)


def test_nothing_is_captured_unless_asked_for(tokenizer, monkeypatch):
    model = build(layers=1)
    monkeypatch.setattr(graphed, "exported", lambda *_: pytest.fail("exported"))
    expected = lil.decode(model, tokenizer, PROMPTS, max_new_tokens=9)
    for mode in ("kept", "auto"):
        traces = lil.decode(model, tokenizer, PROMPTS, max_new_tokens=9, compile=mode)
        assert [record(one) for one in traces] == [record(one) for one in expected]


def test_an_error_in_attention_is_raised_as_it_is(small):
    step = step_of(small)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attention.get("full").on(small) as cache:
        small(ids, past_key_values=cache)
        used = cache.clone()
        with pytest.raises(attention.InvalidValue, match=r"position_ids.*row 0"):
            step(cache.clone(), ids[:, :1], torch.tensor([[4]]))
        with pytest.raises(attention.InvalidValue, match="2 rows"):
            step(used, ids[:, :2].T, torch.tensor([[3], [3]]))
        expected = small(ids[:, :1], past_key_values=cache.clone()).logits[:, -1]
        torch.testing.assert_close(step(cache, ids[:, :1], torch.tensor([[3]])), expected)
    with pytest.raises(attention.InvalidValue, match="closed"):
        step(cache, ids[:, :1], torch.tensor([[3]]))


def test_scores_are_the_callers_own(small):
    step, ids = step_of(small), torch.tensor([[5, 6, 7], [8, 9, 10]])
    with torch.no_grad(), attention.get("full").on(small) as cache:
        small(ids, past_key_values=cache)
        at = cache.seen[:, None]
        first = step(cache, ids[:, :1], at)
        kept = first.clone()
        step(cache, ids[:, 1:2], at + 1)
        assert torch.equal(first, kept)


def test_what_cannot_be_captured_runs_and_is_named(tokenizer):
    """In the middle of a run, for a number of rows that did not come before."""
    model = build(layers=1)
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    expected = lil.decode(model, tokenizer, rows, batch_size=3)
    step = step_of(model)
    capture = step.graphs.capture

    def no_memory(_: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory\nmore of it")

    step.graphs.capture = no_memory
    with pytest.warns(CompileWarning, match=r"of 4 rows cannot be captured.*of memory$") as seen:
        traces = lil.decode(model, tokenizer, rows, batch_size=3, compile="on")
    assert len(seen) == 1
    assert [record(one) for one in traces] == [record(one) for one in expected]
    step.graphs.capture = capture
    same(model, tokenizer)


# Each leaves numbers as they are, so that a probe takes the model.
class _Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.full_like(x, x.sum().item()) * 0


class _Dropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)


class _Some(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * x[x > 0].sum()


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (_Item, r"item.* waits for the device"),
        (_Dropout, r"rand_like.* draws random numbers"),
        (_Some, r"(index|nonzero).* waits for the device"),
        (_Counting, "changes the model's own buffers"),
    ],
    ids=lambda x: getattr(x, "__name__", "").strip("_"),
)
def test_a_forward_that_no_graph_takes_runs_and_is_named(module, reason, tokenizer):
    model = build(layers=1)
    model.model.norm = nn.Sequential(model.model.norm, module())
    with pytest.warns(CompileWarning, match=reason) as seen:
        traces = lil.decode(model, tokenizer, PROMPTS, max_new_tokens=3, compile="on")
    assert len(seen) == 1
    assert [trace.tokens for trace in traces] == [3] * len(PROMPTS)


def test_a_step_on_several_devices_is_refused():
    """As a model would be that is on a GPU and computes something on the CPU."""
    model = build(layers=1)
    program = graphed.exported(model)
    with pytest.raises(NotCompiled, match=r"embedding.* works on cpu"):
        cut(program, graphed.constants(model), torch.device("cuda"))


def test_streams_of_two_runs_take_turns(small, tokenizer):
    """On one model, one of them with hidden states: neither sees what the other left."""
    options: list[dict[str, Any]] = [
        {"backend": attention.H2O(budget=16)},
        {"penalties": [penalty("frequency")], "temperature": 1.0, "seed": 5},
    ]
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    expected = [lil.decode(small, tokenizer, rows, batch_size=2, **one) for one in options]
    runs = [
        lil.stream(small, tokenizer, rows, batch_size=2, compile="on", **one) for one in options
    ]
    found: list[dict[int, Any]] = [{}, {}]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for _ in PROMPTS:
            for run, traces in zip(runs, found, strict=True):
                index, trace = next(run)
                traces[index] = trace
    for traces, wanted in zip(found, expected, strict=True):
        assert [record(traces[i]) for i in range(len(rows))] == [record(one) for one in wanted]

"""Parameters of the shipped methods: what is refused, and what follows from a budget."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import attention
from attention.errors import BudgetExceeded, InvalidValue
from attention.layers.compressing import interval
from attention.testing.driving import follow, text, tiny_model
from lil.decoding.sampling import NotFiniteError
from tests.attention.zoo import animal

#: What each method takes; what is in WRONG is changed in it.
RIGHT: dict[str, dict[str, Any]] = {
    "adamas": {"budget": 8},
    "noise": {},
    "full": {},
    "gkv": {"budget": 24},
    "h2o": {"budget": 8},
    "infllm": {"budget": 64},
    "lazy": {"budget": 16},
    "kascade": {"budget": 8},
    "lessismore": {"budget": 8},
    "oracle": {"budget": 8},
    "quest": {"budget": 32},
    "raas": {"budget": 32},
    "random": {"budget": 9},
    "rkv": {"budget": 16},
    "sink": {"budget": 8},
    "snapkv": {"budget": 16},
    "tova": {"budget": 8},
    "vase": {"budget": 16},
    "window": {"budget": 8},
    "caote": {"budget": 16},
    "duo": {"budget": 16, "pattern": [[0.5, 1]]},
}
#: The last parameter of each is the one that the message names.
WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "adamas": ({"budget": 0}, {"threshold_q": 0}, {"threshold_k": -1.0}, {"gqa": "min"}),
    "noise": ({"noise": 0}, {"noise": -1.0}, {"noise": True}, {"seed": -1}),
    "gkv": (
        *({"budget": 21, "window": 16}, {"window": 0}, {"mix": 1.1}, {"alpha": -0.1}),
        *({"threshold": -1.1}, {"gqa": "query_head"}),
    ),
    "h2o": (
        *({"budget": 1}, {"budget": "8"}, {"heavy": 8}, {"heavy": -1}, {"gqa": "median"}),
        *({"gqa": "kv_head"}, {"score_from_prefill": 0}, {"dense_layers": -1}, {"keep_prompt": 1}),
        *({"keep_prompt": 8}, {"keep_prompt": 2.0}),
    ),
    "infllm": (
        *({"budget": 15}, {"block": 0}, {"n_local": 0}, {"repr_topk": 0}, {"n_init": 1.5}),
        *({"n_local": 40, "budget": 64}, {"topk": 99, "budget": 64}, {"selection": "head"}),
        {"far_position": "true"},
    ),
    "lazy": (
        *({"budget": 3, "window": 0}, {"window": 8, "budget": 16}, {"window": 0}, {"alpha": 0}),
        *({"alpha": 1.5}, {"gqa": "query_head"}),
    ),
    "kascade": (
        *({"budget": 0}, {"gqa": "query_head"}, {"anchors": "0"}, {"anchors": [-1]}),
        *({"maps": [[0]]}, {"anchors": [0], "maps": [0]}, {"anchors": [0], "maps": 3}),
    ),
    "lessismore": (
        *({"budget": 0}, {"recent": 0}, {"recent": 1.5}, {"sinks": -1}, {"select": 2}),
        *({"select": []}, {"select": [1]}),
    ),
    "oracle": (
        *({"budget": None}, {"top_p": 0.5, "budget": 8}, {"budget": 0}, {"gqa": "query_head"}),
        *({"budget": None, "top_p": x} for x in (0.0, 1.0, "0.5")),
    ),
    "quest": (
        *({"budget": 40}, {"budget": 16}, {"budget": 33}, {"page": 0}, {"gqa": "first"}),
        *({"dense_layers": -1}, {"rule": "mean"}, {"factor": 1.0}, {"spread": "coordinate"}),
        *({"rule": "moments", "factor": -1.0}, {"rule": "moments", "spread": "std"}),
        *({"least": 32, "share": 1.0}, {"share": 0.5, "least": None}, {"share": 0.5, "least": 24}),
        *({"share": 0.5, "least": 48}, {"share": 0.5, "least": 16}),
    ),
    "raas": (
        *({"budget": 16}, {"budget": 40}, {"page": 0}, {"alpha": 1.5}, {"alpha": "0.1"}),
        *({"keep_prompt": 1}, {"gqa": "query_head"}),
    ),
    "random": (
        *({"budget": 4}, {"sinks": -1}, {"seed": -1}, {"recent": 0}),
        *({"recent": 6, "budget": 9}, {"sinks": 0, "budget": 1}, {"every": 0}),
        *({"every": 2, "prefix": -1}, {"every": 2, "prefix": 1}, {"every": 2, "budget": 8}),
        {"keep_prompt": True, "prefix": 1},
    ),
    "rkv": (
        *(
            {"budget": 10, "window": 8},
            {"window": 12},
            {"window": 0},
            {"mix": 1.1},
            {"threshold": -0.1},
        ),
        *({"kernel": 4}, {"gqa": "sum"}, {"buffer": 0}, {"buffer": 8}, {"shared": 1}),
    ),
    "sink": (
        *({"budget": 4}, {"budget": 8.0}, {"budget": True}, {"sinks": -1}),
        *({"sinks": 0, "budget": 0}, {"positions": "hf_sinkcache"}),
    ),
    "snapkv": ({"budget": 3}, {"window": 12}, {"window": 0}, {"kernel": 2}, {"gqa": "query_head"}),
    "tova": (
        *({"budget": 1}, {"budget": "8"}, {"pyramid": 0}, {"pyramid": 20}, {"budgets": [9, 6]}),
        *({"budgets": 8}, {"budgets": [8.0, 8.0]}, {"budgets": [8, 8], "pyramid": 2.0}),
    ),
    "duo": (
        *({"budget": 0}, {"sinks": 16, "budget": 16}, {"sparsity": 1.1}, {"threshold": -1}),
        *({"pattern": x} for x in ([], [1.0], [[1], [1, 0]], [[float("nan")]], "no such file", 3)),
    ),
    "caote": ({"budget": 3}, {"kernel": 2}, {"fast": 1}),
    "vase": (
        *({"budget": 3}, {"window": 12}, {"window": 0}, {"sinks": -1}, {"kernel": 2}),
        *({"gqa": "query_head"}, {"seed": 0.5}),
    ),
    "window": ({"budget": 0}, {"budget": 2.0}, {"budget": True}),
}


@pytest.mark.parametrize("name", attention.names())
def test_bad_parameters_are_refused_by_name(name: str) -> None:
    assert attention.get(name, **RIGHT[name]).name == name
    for changed in WRONG.get(name, ()):
        with pytest.raises(attention.InvalidValue) as refused:
            attention.get(name, **{**RIGHT[name], **changed})
        assert refused.value.field == [*changed][-1], changed


def test_what_is_not_given_follows_from_the_budget() -> None:
    def params(name: str, field: str, *budgets: int) -> list[Any]:
        return [attention.get(name, budget=b).params()[field] for b in budgets]

    assert params("h2o", "heavy", 8, 9) == [4, 4]
    assert params("random", "recent", 64, 5) == [30, 1]
    assert params("snapkv", "window", 4, 64, 1024) == [1, 16, 32]
    # How many tokens rkv and snapkv drop at once.
    assert [interval(b) for b in (4, 64, 512, 1024)] == [1, 16, 128, 128]


def test_budgets_of_layers_are_those_typed() -> None:
    """Parameters at their defaults follow from a layer's own budget, others stay."""
    model = tiny_model(4)
    for entry, expected in {
        "h2o(budget=[24, 16, 12, 8])": [(24, 12), (16, 8), (12, 6), (8, 4)],
        "h2o(budget=16, heavy=3, pyramid=3)": [(24, 21), (19, 16), (13, 10), (8, 5)],
        "h2o(budget=16, heavy=8, dense_layers=1, pyramid=3)": [(24, 12), (16, 8), (8, 4)],
    }.items():
        backend = attention.get(entry)
        assert attention.get("h2o", **backend.params()) == backend
        with backend.on(model) as cache:
            follow(model, cache, [text(30)], text(1, 1))
            own: list[Any] = cache.layers[backend.dense_layers :]
            assert [(layer.budget, layer.recent) for layer in own] == expected
    pages = attention.Quest(budget=64, pyramid=3).layer_budgets([None] * 7)
    assert pages == {2: 96, 3: 80, 4: 64, 5: 48, 6: 32}
    for entry, says in {
        "tova(budget=[8, 8])": "4 numbers",
        "quest(budget=[64, 64, 64, 64])": r"in these layers alone: \[2, 3\]",
        "kascade(budget=8, pyramid=2)": "pyramid = 2: .* chooses for others",
        "sink(budget=[9, 11], budgets=[30, 40])": "of which `budget` is the mean",
    }.items():
        with pytest.raises(InvalidValue, match=says), attention.get(entry).on(model):
            pass
    with pytest.raises(InvalidValue, match="fit in every layer"):  # its third has 40
        attention.InfLLM(budget=47, topk=4, pyramid=0.47).layer_budgets([None] * 8)


@pytest.mark.parametrize(
    ("budget", "block", "topk", "n_init", "n_local"),
    [
        (1024, 32, 15, 32, 480),
        (512, 16, 15, 32, 224),
        (256, 16, 7, 16, 112),
        (128, 8, 7, 8, 56),
        (64, 8, 3, 4, 28),
        (16, 4, 1, 4, 4),
    ],
)
def test_infllm_splits_its_budget_as_promised(
    budget: int, block: int, topk: int, n_init: int, n_local: int
) -> None:
    backend = attention.InfLLM(budget=budget)
    split = {"block": block, "topk": topk, "n_init": n_init, "n_local": n_local, "repr_topk": 4}
    assert n_init + n_local + (topk + 1) * block == budget
    assert backend.params().items() >= split.items()


@pytest.mark.parametrize(
    "error",
    [
        InvalidValue("budget", 3, "at least 4", ["4"]),
        BudgetExceeded("sink", 1, 9, 8),
        NotFiniteError(),
    ],
)
def test_errors_reach_another_process_as_they_are(error):
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("lessismore(budget=8, dense_layers=0, select=[1, 2])", "select.* acts on, here 1 of"),
        ("lessismore(budget=8, dense_layers=0, select=[0])", "select.* acts on, here 1 of"),
        ("kascade(budget=8, anchors=[2])", "anchors.* acts on, here 1 of"),
        ("lazy(budget=16, gqa='sum', alpha=2.5)", "alpha = 2.5: expected at most 2"),
        ("duo(budget=8, pattern=[[1, 0]])", "pattern = '1 rows of 2 gates': expected 2 rows"),
        ("duo(budget=8, pattern=[[1], [0]])", "pattern.* gates"),
        ("kascade(budget=8, anchors=[1], maps=[[0, 1]])", "maps = '1 rows': expected 2"),
        ("kascade(budget=8, anchors=[1], maps=[[0, 1], [0, 2]])", "maps.* one a KV head"),
        ("kascade(budget=8, anchors=[1], maps=[[0], [0]])", "maps.* one a KV head"),
    ],
)
def test_layers_that_a_model_has_not_are_refused_before_any_compute(entry: str, says: str) -> None:
    """The model slides in its first layer; by default the other one chooses."""
    model = animal("gemma3")
    with pytest.raises(InvalidValue, match=says), attention.get(entry).on(model):
        pass
    for backend in (attention.LessIsMore(budget=8, dense_layers=0), attention.Kascade(budget=8)):
        with backend.on(model) as cache:
            follow(model, cache, [text(12)], text(1, 2))
            assert cache.row_stats().dense_read_mean.tolist() == [14]

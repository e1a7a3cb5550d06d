"""SnapKV in decode: what the newest queries and their neighbours attend to."""

from __future__ import annotations

import pytest
from driving import Bare

import attention


@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
@pytest.mark.parametrize(("window", "kernel"), [(1, 5), (4, 1), (5, 3)])
def test_a_compression_keeps_the_best(window: int, kernel: int, gqa: str) -> None:
    """Beside `test_rkv.py`, which looks at when rows are compressed."""
    bare = Bare(attention.SnapKV(budget=20, window=window, kernel=kernel, gqa=gqa))
    bare.feed(19)
    for _ in range(30):
        before = bare.kept()
        bare.feed()
        for j in range(2):
            held = [*before[j], bare.n - 1]
            assert bare.read()[j] == held
            if len(held) == 20:
                held = best(bare, j, held, window, kernel, gqa)
            assert bare.kept()[j] == held


def test_a_prompt_is_compressed_like_a_row() -> None:
    bare = Bare(attention.SnapKV(budget=20, window=4))
    bare.feed(50)
    for j in range(2):
        assert bare.kept()[j] == best(bare, j, list(range(50)), 4, 5, "sum")


def best(bare: Bare, j: int, held: list[int], window: int, kernel: int, gqa: str) -> list[int]:
    """What stays of these positions, by loops."""
    candidates, half = held[:-window], kernel // 2
    mass = []
    for h in (2 * j, 2 * j + 1):
        total = [0.0] * len(candidates)
        for query in held[-window:]:
            probs = bare.probabilities(query, [p for p in held if p <= query], h)
            total = [t + float(p) for t, p in zip(total, probs, strict=False)]
        mass.append(total)
    reduce = {"sum": sum, "mean": lambda x: sum(x) / 2, "max": max}[gqa]
    score = [reduce(pair) for pair in zip(*mass, strict=True)]
    padded = [0.0] * half + score + [0.0] * half
    pooled = [sum(padded[i : i + kernel]) / kernel for i in range(len(score))]
    order = sorted(range(len(score)), key=lambda i: (-pooled[i], i))
    return sorted(candidates[i] for i in order[: 15 - window]) + held[-window:]


def test_the_window_by_default() -> None:
    assert [attention.SnapKV(budget=b).params()["window"] for b in (4, 64, 1024)] == [1, 16, 32]


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 3},
        {"budget": 16, "window": 12},
        {"budget": 16, "window": 0},
        {"budget": 16, "kernel": 2},
        {"budget": 16, "gqa": "query_head"},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.SnapKV(**arguments)

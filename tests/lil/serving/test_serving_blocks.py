"""Policies over the blocks of an engine's cache, against sets of tokens built token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil.serving.blocks.plans import WHOLE, queries, table
from lil.serving.blocks.policies import policy_of
from lil.serving.blocks.reads import ReadCounts
from lil.serving.blocks.ropes import RopeTable

BLOCKS = st.sampled_from([4, 16, 32])


@st.composite
def policies(draw: Any) -> tuple[str, dict[str, int], int]:
    """A method, its numbers, and the block."""
    block = draw(BLOCKS)
    name = draw(st.sampled_from(["sink", "window", "quest", "infllm"]))
    numbers: dict[str, int] = {}
    if name == "sink":
        numbers["sinks"] = block * draw(st.integers(0, 3))
        numbers["budget"] = numbers["sinks"] + draw(
            st.integers(block if numbers["sinks"] else 1, 4 * block)
        )
    elif name == "window":
        numbers["budget"] = draw(st.integers(1, 5 * block))
    elif name == "quest":
        numbers["budget"] = block * draw(st.integers(2, 6))
    else:
        numbers |= {"n_init": block * draw(st.integers(0, 2)), "topk": draw(st.integers(1, 3))}
        numbers["n_local"] = draw(st.integers(1, 3 * block))
        most = numbers["n_init"] + numbers["n_local"] + (numbers["topk"] + 1) * block
        numbers |= {"budget": max(16, most), "block": block, "repr_topk": block}
    return name, numbers, block


def text(name: str, numbers: dict[str, Any]) -> str:
    words = {"sink": {"positions": '"absolute"'}, "infllm": {"far_position": '"absolute"'}}
    both = {**numbers, **words.get(name, {})}
    return f"{name}({', '.join(f'{key} = {value}' for key, value in both.items())})"


def always_and_gap(
    name: str, numbers: dict[str, int], block: int, seen: int
) -> tuple[set[int], list[int], int]:
    """Tokens that a query reads whatever they are, the blocks that compete, and how many win."""
    every = range(seen)
    if name in ("sink", "window"):
        sinks = numbers.get("sinks", 0)
        if seen <= numbers["budget"]:
            return set(every), [], 0
        return {i for i in every if i < sinks or i >= seen - (numbers["budget"] - sinks)}, [], 0
    if name == "quest":
        competing, wins = list(range((seen - 1) // block)), numbers["budget"] // block - 1
    else:
        first, local = numbers["n_init"], numbers["n_local"]
        blocked = [i for i in every if first <= i < seen - local]  # outside of the window
        newest = (blocked[-1] - first) // block if blocked else 0
        competing = [first // block + number for number in range(newest)]
        wins = numbers["topk"]
    if len(competing) <= wins:
        return set(every), [], 0
    return {i for i in every if i // block not in competing}, competing, wins


@given(policies(), st.integers(1, 400), st.randoms(use_true_random=False))
def test_a_table_lists_what_the_method_reads(drawn: Any, seen: int, random: Any) -> None:
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    always, competing, wins = always_and_gap(name, numbers, block, seen)
    read = len(always) + wins * block
    counts = np.array([seen])
    assert policy.tokens_read(counts)[0] == read <= max(numbers["budget"], 0)
    assert policy.leaves_out(counts)[0] == (read < seen)
    if read == seen:
        return
    rows, first = table(policy, counts)
    row = rows[0].tolist()
    assert (policy.best, policy.blocks_compared(counts)[0]) == (wins, len(competing))
    chosen = random.sample(competing, wins)
    row[first : first + wins] = chosen
    row = row[: policy.blocks_read(counts)[0]]
    assert len(set(row)) == len(row)
    listed = [block * number + i for number in row for i in range(block)]
    listed = listed[: policy.tokens_listed(counts)[0]]
    if policy.window is not None:
        listed = listed[-policy.window :]
    assert set(listed) == always | {i for i in range(seen) if i // block in chosen}
    assert len(listed) == read


@given(policies(), st.integers(1, 300), st.integers(0, 200))
def test_what_is_given_back_is_never_read_again(drawn: Any, seen: int, more: int) -> None:
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    start, end = (int(x[0]) for x in policy.gap(np.array([seen])))
    later, _, _ = always_and_gap(name, numbers, block, seen + more)
    if not policy.best and policy.leaves_out(np.array([seen]))[0]:
        assert not {i // block for i in later} & set(range(start, end))


@given(
    policies(),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(1, 250) | st.just(WHOLE)),
        min_size=1,
        max_size=5,
    ),
)
def test_generated_tokens_are_queries_and_what_is_read_in_full_comes_first(
    drawn: Any, rows: Any
) -> None:
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    past, new, prompt = (np.array(x) for x in zip(*rows, strict=True))
    step = queries(policy, past, new, prompt)
    expected, token, full = [], 0, []
    for row, (before, count, length) in enumerate(rows):
        in_full = 0
        for position in range(before, before + count):
            always, _, wins = always_and_gap(name, numbers, block, position + 1)
            if position >= length and len(always) + wins * block < position + 1:
                expected.append((token, row, position + 1))
            else:
                assert in_full == position - before
                in_full += 1
            token += 1
        full.append(in_full)
    assert list(zip(step.token, step.row, step.seen, strict=True)) == expected
    assert step.full.tolist() == full


def test_reads_are_counted_for_each_request_and_all() -> None:
    counts = ReadCounts(policy_of("window(budget=10)", 4), sparse=3, dense=1)
    no = np.array([False, False])
    # A prompt of 20 in two pieces next to one of 5, then tokens, and one that was put back.
    counts.step(["a", "b"], np.array([0, 0]), np.array([12, 5]), np.array([20, 5]), no)
    assert counts.running == {}
    counts.step(["a", "b"], np.array([12, 5]), np.array([8, 1]), np.array([20, 5]), no)
    counts.step(["a", "b"], np.array([20, 6]), np.array([1, 1]), np.array([20, 5]), ~no)
    counts.step(["a"], np.array([0]), np.array([23]), np.array([20]), no[:1])
    a, b = counts.end("a"), counts.end("b")
    assert a is not None
    assert b is not None
    assert (a.queries, a.keys_of_full) == (4, 4 * (21 + 21 + 22 + 23))
    assert a.keys_read == 4 * 21 + 3 * 30 + (21 + 22 + 23)
    assert (b.queries, b.keys_read, b.keys_of_full) == (2, 4 * 13, 4 * 13)
    assert counts.total.queries == 6
    assert counts.end("a") is None


def test_ropes_of_neighbours_and_of_a_part_of_a_head() -> None:
    angles = torch.randn(1, 2).expand(10, 2) * torch.arange(10.0)[:, None]
    # A factor on both, as some models have, is none of a turn.
    rope = RopeTable(1.5 * torch.cat((angles.cos(), angles.sin()), dim=-1), halves=False)
    x, positions = torch.randn(3, 2, 6), torch.tensor([0, 4, 9])
    turned = rope.shift(x, positions, 7)
    for i, position in enumerate(positions.tolist()):
        for pair in (0, 2):
            angle = float(angles[7, pair // 2] - angles[position, pair // 2])
            cos, sin = math.cos(angle), math.sin(angle)
            a, b = x[i, :, pair], x[i, :, pair + 1]
            assert torch.allclose(turned[i, :, pair], a * cos - b * sin, atol=1e-5)
            assert torch.allclose(turned[i, :, pair + 1], b * cos + a * sin, atol=1e-5)
    assert torch.equal(turned[..., 4:], x[..., 4:])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sink(budget=64)", "'absolute'"),
        ('sink(budget=64, positions="absolute")', "sinks = 4: expected a multiple of the engine's"),
        ('sink(budget=31, sinks=16, positions="absolute")', "block of 16 tokens, 32"),
        ("window(budget=64, keep_prompt=true)", "keep_prompt = True: expected False inside"),
        ("quest(budget=64, page=32)", "page = 32: expected 16"),
        ('quest(budget=64, gqa="query_head")', "a table is one KV head's"),
        ("infllm(budget=64)", "far_position"),
        ('infllm(budget=64, far_position="absolute", n_init=16)', "repr_topk = 4"),
        ('infllm(budget=64, far_position="absolute", repr_topk=16, n_init=4)', "n_init = 4"),
        ('infllm(budget=64, block=8, far_position="absolute", repr_topk=8)', "block = 8"),
        (
            'infllm(budget=96, topk=0, far_position="absolute", repr_topk=16, n_init=16)',
            "topk = 0: expected at least 1",
        ),
        ("h2o(budget=64)", "one of infllm, quest, sink, window"),
        ("quest(budget=64, pages=16)", "did you mean 'page'"),
        ("quest(budget=64", "such as"),
        (3, "a method with its parameters"),
    ],
)  # fmt: skip
def test_what_blocks_cannot_do_is_refused_by_name(name: object, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        policy_of(name, 16)
    assert message in str(caught.value)

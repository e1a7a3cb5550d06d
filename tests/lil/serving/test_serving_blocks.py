"""Policies over the blocks of an engine's cache, against sets of tokens put together one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention.errors import InvalidValue
from lil.serving.blocks import WHOLE, ReadCounts, RopeTable, Summaries, policy_of, queries, table

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


def text(name: str, numbers: dict[str, int]) -> str:
    words = {"sink": {"positions": '"absolute"'}, "infllm": {"far_position": '"absolute"'}}
    both = {**numbers, **words.get(name, {})}
    return f"{name}({', '.join(f'{key} = {value}' for key, value in both.items())})"


def always_and_gap(
    name: str, numbers: dict[str, int], block: int, seen: int
) -> tuple[set, list, int]:
    """Tokens that a query reads whatever they are, the blocks that compete, and how many win."""
    every = range(seen)
    if name in ("sink", "window"):
        sinks = numbers.get("sinks", 0)
        if seen <= numbers["budget"]:
            return set(every), [], 0
        return {i for i in every if i < sinks or i >= seen - (numbers["budget"] - sinks)}, [], 0
    if name == "quest":
        last = (seen - 1) // block
        competing, wins = list(range(last)), numbers["budget"] // block - 1
    else:
        first, local = numbers["n_init"], numbers["n_local"]
        gone = [i for i in every if i < seen - local]  # what has left the window
        blocked = [i for i in gone if i >= first]
        newest = (blocked[-1] - first) // block if blocked else 0
        competing = [(first // block) + number for number in range(newest)]
        wins = numbers["topk"]
    if len(competing) <= wins:
        return set(every), [], 0
    return {i for i in every if i // block not in competing}, competing, wins


@given(policies(), st.integers(1, 400), st.randoms(use_true_random=False))
def test_a_table_lists_what_the_method_reads(drawn, seen, random):
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    always, competing, wins = always_and_gap(name, numbers, block, seen)
    read = len(always) + wins * block
    counts = np.array([seen])
    assert policy.tokens_read(counts)[0] == read <= max(numbers["budget"], 0)
    assert policy.leaves_out(counts)[0] == (read < seen)
    if read == seen:
        return
    numbers_of, first, best = table(policy, counts)
    row = numbers_of[0].tolist()
    assert (best, policy.blocks_compared(counts)[0]) == (wins, len(competing))
    chosen = random.sample(competing, wins)
    row[first : first + best] = chosen
    row = row[: policy.blocks_read(counts)[0]]
    assert len(set(row)) == len(row)
    listed = [block * number + i for number in row for i in range(block)]
    listed = listed[: policy.tokens_listed(counts)[0]]
    if policy.window is not None:
        listed = listed[-policy.window :]
    assert set(listed) == always | {i for i in range(seen) if i // block in chosen}
    assert len(listed) == read


@given(policies(), st.integers(1, 300), st.integers(0, 200))
def test_what_is_given_back_is_never_read_again(drawn, seen, more):
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    start, end = (int(x[0]) for x in policy.gap(np.array([seen])))
    later, _, _ = always_and_gap(name, numbers, block, seen + more)
    if policy.gives_back and policy.leaves_out(np.array([seen]))[0]:
        assert not {i // block for i in later} & set(range(start, end))
    assert policy.gives_back == (name in ("sink", "window"))


@given(
    policies(),
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(1, 250) | st.just(WHOLE)),
        min_size=1,
        max_size=5,
    ),
)
def test_tokens_of_a_step_are_parted_one_by_one(drawn, rows):
    name, numbers, block = drawn
    policy = policy_of(text(name, numbers), block)
    past, new, prompt = (np.array(x) for x in zip(*rows, strict=True))
    found = queries(policy, past, new, prompt)
    expected, at, full = [], 0, []
    for row, (had, count, length) in enumerate(rows):
        here = 0
        for position in range(had, had + count):
            _, competing, _ = always_and_gap(name, numbers, block, position + 1)
            short = bool(competing) or (
                name in ("sink", "window") and position + 1 > numbers["budget"]
            )
            if position >= length and short:
                expected.append((at, row, position + 1))
            else:
                assert here == position - had  # what is read in full comes first
                here += 1
            at += 1
        full.append(here)
    assert list(zip(found.token, found.row, found.seen, strict=True)) == expected
    assert found.full.tolist() == full


def test_reads_are_counted_for_each_request_and_all():
    policy = policy_of("window(budget=10)", 4)
    counts = ReadCounts(policy, sparse=3, dense=1)
    no = np.array([False, False])
    # A prompt of 20 in two pieces beside one of 5, then tokens, and one that was put back.
    counts.step(["a", "b"], np.array([0, 0]), np.array([12, 5]), np.array([20, 5]), no)
    assert counts.running == {}
    counts.step(["a", "b"], np.array([12, 5]), np.array([8, 1]), np.array([20, 5]), no)
    counts.step(["a", "b"], np.array([20, 6]), np.array([1, 1]), np.array([20, 5]), ~no)
    counts.step(["a"], np.array([0]), np.array([23]), np.array([20]), no[:1])
    a, b = counts.end("a"), counts.end("b")
    assert (a.queries, a.keys_of_full) == (4, 4 * (21 + 21 + 22 + 23))
    assert a.keys_read == 4 * 21 + 3 * 30 + (21 + 22 + 23)
    assert (b.queries, b.keys_read, b.keys_of_full) == (2, 4 * 13, 4 * 13)
    assert counts.total.queries == 6
    assert counts.end("a") is None


# What is remembered of blocks


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Pairs of halves as complex numbers, turned by an angle each."""
    one, two = x.double().chunk(2, dim=-1)
    both = torch.complex(one, two) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((both.real, both.imag), dim=-1)


INFLLM = 'budget=24, block=4, n_init=4, topk=1, n_local=8, repr_topk=4, far_position="absolute"'


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "name",
    [
        "quest(budget=8, page=4)",
        'quest(budget=8, page=4, gqa="max")',
        f"infllm({INFLLM})",
        f'infllm({INFLLM}, selection="kv_head")',
    ],
)
def test_worth_of_blocks_that_were_used_before_and_filled_in_pieces(name, seed):
    torch.manual_seed(seed)
    block, Hkv, G, D, count = 4, 2, 3, 8, 22
    policy = policy_of(name, block)
    rates = 0.3 ** torch.arange(D // 2, dtype=torch.float64)
    angles = torch.arange(100, dtype=torch.float64)[:, None] * rates
    # A factor on both, as some models have, is none of a turn.
    rope = RopeTable(torch.cat((angles.cos(), angles.sin()), dim=-1).float() * 1.5, halves=True)
    summaries = Summaries(policy, 12, Hkv, D, rope)
    summaries.note(100 * torch.randn(48, Hkv, D), torch.arange(48), torch.arange(48))
    k, where = torch.randn(count, Hkv, D), torch.randperm(12)[: -(-count // block)]
    at = where[torch.arange(count) // block] * block + torch.arange(count) % block
    begin = 0
    while begin < count:
        end = min(count, begin + int(torch.randint(1, 7, ())))
        some = slice(begin, end)
        # Padding of a step is none of a request.
        summaries.note(
            torch.cat((k[some], torch.full((1, Hkv, D), 1e6))),
            torch.cat((at[some], torch.tensor([-1]))),
            torch.cat((torch.arange(begin, end), torch.tensor([0]))),
        )
        begin = end
    q = torch.randn(1, Hkv, G, D)
    full = where[: count // block]
    found = summaries.worth(q, torch.tensor([count - 1]), full[None])[0]
    expected = torch.zeros(Hkv, len(full), dtype=torch.float64)
    for number in range(len(full)):
        held = k[number * block : (number + 1) * block].double()
        for head in range(Hkv):
            each = []
            for g in range(G):
                one = q[0, head, g].double()
                if "quest" in name:
                    most, least = held[:, head].amax(0), held[:, head].amin(0)
                    each.append(torch.maximum(one * most, one * least).sum())
                else:
                    places = torch.arange(number * block, (number + 1) * block)
                    mean = turned(held[:, head], -angles[places]).mean(0)
                    far = turned(one[None], angles[7:8] - angles[count - 1 : count])[0]
                    each.append(far @ mean)
            worth = torch.stack(each)
            expected[head, number] = worth.max() if "max" in name else worth.sum()
    if "infllm" in name and "kv_head" not in name:
        expected = expected.sum(0, keepdim=True)
    assert torch.allclose(found.double(), expected, atol=1e-4)


def test_ropes_of_neighbours_and_of_a_part_of_a_head():
    table_of = torch.randn(1, 4).expand(10, 4) * torch.arange(10.0)[:, None]
    angles = table_of[:, :2]
    rope = RopeTable(torch.cat((angles.cos(), angles.sin()), dim=-1), halves=False)
    x = torch.randn(3, 2, 6)
    at = torch.tensor([0, 4, 9])
    found = rope.shift(x, at, 7)
    for i, position in enumerate(at.tolist()):
        for pair in range(2):
            a = float(angles[7, pair] - angles[position, pair])
            one, two = x[i, :, 2 * pair], x[i, :, 2 * pair + 1]
            assert torch.allclose(
                found[i, :, 2 * pair], one * math.cos(a) - two * math.sin(a), atol=1e-5
            )
            assert torch.allclose(
                found[i, :, 2 * pair + 1], two * math.cos(a) + one * math.sin(a), atol=1e-5
            )
    assert torch.equal(found[..., 4:], x[..., 4:])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sink(budget=64)", "'absolute'"),
        ('sink(budget=64, positions="absolute")', "sinks = 4: expected a multiple of the engine's"),
        ('sink(budget=31, sinks=16, positions="absolute")', "block of 16 tokens, 32"),
        ('sink(budget=64, sinks=16, positions="absolute", keep_prompt=true)', "False inside"),
        ("window(budget=64, keep_prompt=true)", "keep_prompt"),
        ("quest(budget=64, page=32)", "page = 32: expected 16"),
        ('quest(budget=64, gqa="query_head")', "a table is one KV head's"),
        ('quest(budget=64, rule="paper_script")', "'kernel'"),
        ("infllm(budget=64)", "far_position"),
        ('infllm(budget=64, far_position="absolute", n_init=16)', "repr_topk = 4"),
        ('infllm(budget=64, far_position="absolute", repr_topk=16, n_init=4)', "n_init = 4"),
        ('infllm(budget=64, block=8, far_position="absolute", repr_topk=8)', "block = 8"),
        (
            'infllm(budget=96, topk=0, far_position="absolute", repr_topk=16, n_init=16)',
            "topk = 0: expected at least 1",
        ),
        ("h2o(budget=64)", "one of infllm, quest, sink, window"),
        ("qest(budget=64)", "did you mean 'quest'"),
        ("quest(budget=64, pages=16)", "did you mean 'page'"),
        ("quest(budget=64", "such as"),
        (3, "a method with its parameters"),
    ],
)  # fmt: skip
def test_what_blocks_cannot_do_is_refused_by_name(name, message):
    with pytest.raises(InvalidValue) as caught:
        policy_of(name, 16)
    assert message in str(caught.value)

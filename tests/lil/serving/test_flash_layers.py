"""The form for GPUs over a stand-in for its kernel, against attention over what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from paged_flash import flash_attn_varlen_func
from test_serving_blocks import always_and_gap, text, turned

from attention.core import devices
from attention.errors import InvalidValue
from lil.serving.blocks import (
    WHOLE,
    FlashLayer,
    RopeTable,
    SparseLayer,
    StepReads,
    in_full_rows,
    policy_of,
    queries,
)
from lil.serving.blocks.flash import flash_pages
from lil.serving.blocks.plans import head_by_head
from tests.waits import Guard

BLOCK, HKV, G, D, POOL, CHUNK = 16, 2, 3, 8, 26, 24
RATES = 0.3 ** torch.arange(D // 2, dtype=torch.float64)
ANGLES = torch.arange(200, dtype=torch.float64)[:, None] * RATES
ROPE = RopeTable(torch.cat((ANGLES.cos(), ANGLES.sin()), dim=-1).float(), halves=True)

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "sink": ("sink", {"budget": 41, "sinks": 16}),
    "window": ("window", {"budget": 37}),
    "quest": ("quest", {"budget": 48}),
    "quest, max": ("quest", {"budget": 32, "gqa": '"max"'}),
    "infllm": (
        "infllm",
        {"budget": 64, "n_init": 16, "n_local": 10, "topk": 1, "block": 16, "repr_topk": 16},
    ),
}
POLICIES["infllm, heads"] = ("infllm", POLICIES["infllm"][1] | {"selection": '"kv_head"'})


@dataclass
class Life:
    """A request: its prompt, and all of the tokens it will ever have with those known at first."""

    prompt: int
    known: int
    end: int
    whole: bool = False
    past: int = 0
    owned: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.q = torch.randn(self.end, HKV * G, D)
        self.k, self.v = torch.randn(self.end, HKV, D), torch.randn(self.end, HKV, D)
        self.out = torch.zeros(self.end, HKV * G, D)


def lives() -> list[Life]:
    """Ragged: short and long prompts, one in full, one put back; the last come into used blocks."""
    return [
        Life(70, 70, 84),
        Life(5, 5, 12),
        Life(20, 61, 70),  # generated tokens are read again beside those of the prompt
        Life(50, 50, 66, whole=True),
        Life(33, 33, 99),
        Life(64, 64, 90),
    ]


@dataclass
class Metadata(StepReads):
    """What an engine tells its kernel."""

    num_actual_tokens: int = 0
    query_start_loc: Any = None
    seq_lens: Any = None
    block_table: Any = None
    slot_mapping: Any = None


class Standing(FlashLayer):
    """The form for GPUs in an engine whose kernel is the one described."""

    calls: list[dict[str, Any]]
    guard: Guard

    def kernel(self, **arguments: Any) -> Any:
        with self.guard.looking_away():
            self.calls.append(arguments)
            return flash_attn_varlen_func(**arguments)

    def read_in_full(self, *given: Any) -> None:
        query, _, _, kv_cache, meta, output = given[1:7]
        with self.guard.looking_away():
            k, v = kv_cache.transpose(1, 2).split(D, dim=-1)
            some = slice(meta.num_actual_tokens)
            new = meta.query_start_loc.diff()
            flash_attn_varlen_func(
                q=query[some],
                k=k,
                v=v,
                out=output[some],
                cu_seqlens_q=meta.query_start_loc,
                max_seqlen_q=int(new.max()),
                seqused_k=meta.seq_lens,
                max_seqlen_k=int(meta.seq_lens.max()),
                softmax_scale=self.scale,
                causal=True,
                block_table=meta.block_table,
            )


class Listing(SparseLayer):
    """A form whose kernel is not called: what it would have been told of."""

    listed: list[Any]

    def read_in_full(self, *given: Any) -> None:
        del given

    def read_tables(self, *given: Any) -> None:
        self.listed.append(given[-1])


def layer_of(kind: type[Any], policy: Any, **more: Any) -> Any:
    refused = dict.fromkeys(("alibi_slopes", "sinks", "kv_sharing_target_layer_name"))
    shape = {"num_kv_heads": HKV, "num_queries_per_kv": G, "head_size": D, "scale": 0.4}
    flash = {"flash_version": 3, "flash_splits": 0, "logits_soft_cap": 0.0}
    impl = SimpleNamespace(**(refused | shape | flash | more))
    return kind.of(impl, policy, ROPE)


def step_of(rows: list[Life], new: np.ndarray, policy: Any) -> Metadata:
    """What the engine's builder and the plan say of a step."""
    past = np.array([one.past for one in rows])
    owned = torch.zeros(len(rows), max(len(one.owned) for one in rows), dtype=torch.int32)
    for row, one in enumerate(rows):
        owned[row, : len(one.owned)] = torch.tensor(one.owned)
    prompts = np.array([WHOLE if one.whole else one.prompt for one in rows])
    found = queries(policy, past, new, prompts)
    reads = StepReads.planned(policy, found, past, new, owned, HKV)
    kept, count, lengths = in_full_rows(found, past)
    places = [
        one.owned[at // BLOCK] * BLOCK + at % BLOCK
        for one, more in zip(rows, new, strict=True)
        for at in range(one.past, one.past + more)
    ]
    return Metadata(
        **vars(reads),
        num_actual_tokens=int(new.sum()),
        query_start_loc=torch.from_numpy(np.r_[0, np.cumsum(count)].astype(np.int32)),
        seq_lens=torch.from_numpy(lengths.astype(np.int32)),
        block_table=owned[torch.from_numpy(kept)],
        slot_mapping=torch.tensor([*places, -1]),  # and one of padding
    )


@contextmanager
def nothing_waits() -> Iterator[Guard]:
    """The CPU counts as a GPU."""
    guard = Guard()
    with (
        mock.patch.object(devices, "is_synchronous", return_value=False),
        mock.patch.object(devices, "put", guard.exempt(devices.put)),
    ):
        yield guard


def served(policy: Any, layer: Standing, beside: Listing, guard: Guard) -> list[Life]:
    """Requests in three places until all have ended."""
    every = lives()
    waiting, running = list(every), []
    free = torch.randperm(POOL).tolist()
    cache = 50 * torch.randn(POOL, HKV, BLOCK, 2 * D)
    padding = torch.full((1, HKV, D), 1e6)
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop(0))
        new = np.array([min(CHUNK, max(one.known - one.past, 1)) for one in running])
        for one, more in zip(running, new, strict=True):
            while len(one.owned) * BLOCK < one.past + more:
                one.owned.append(free.pop())
        meta = step_of(running, new, policy)
        some = [slice(one.past, one.past + n) for one, n in zip(running, new, strict=True)]
        q, k, v = (
            torch.cat([getattr(one, name)[at] for one, at in zip(running, some, strict=True)])
            for name in "qkv"
        )
        slots = meta.slot_mapping[:-1]
        cache[slots // BLOCK, :, slots % BLOCK] = torch.cat((k, v), dim=-1)
        q, k = torch.cat((q, q[:1])), torch.cat((k, padding))
        out = torch.full_like(q, 7.0)
        before = len(layer.calls)
        with guard.on():
            layer.forward(None, q, k, k, cache, meta, out)
        beside.forward(None, q, k, k, cache, meta, out.clone())
        assert len(layer.calls) - before == (meta.sparse is not None)
        assert (out[-1] == 7).all()
        for one, at, part in zip(running, some, out[:-1].split(new.tolist()), strict=True):
            one.out[at] = part
            one.past = at.stop
        for one in [one for one in running if one.past == one.end]:
            running.remove(one)
            free += one.owned
    return every


def chosen(name: str, numbers: dict[str, Any], life: Life, position: int) -> list[set[int]]:
    """Tokens that each KV head of a query reads, one by one."""
    counts = {key: value for key, value in numbers.items() if isinstance(value, int)}
    always, competing, wins = always_and_gap(name, counts, BLOCK, position + 1)
    if not wins:
        return [always] * HKV
    worth = torch.zeros(HKV, len(competing), dtype=torch.float64)
    for head in range(HKV):
        q = life.q[position].view(HKV, G, D)[head].double()
        for at, block in enumerate(competing):
            places = torch.arange(block * BLOCK, (block + 1) * BLOCK)
            held = life.k[places, head].double()
            if name == "quest":
                bounds = torch.maximum(q * held.amax(0), q * held.amin(0)).sum(-1)
                worth[head, at] = bounds.max() if "gqa" in numbers else bounds.sum()
            else:
                mean = turned(held, -ANGLES[places]).mean(0)
                local = numbers["n_local"] - 1
                far = turned(q, (ANGLES[local] - ANGLES[position]).expand(G, -1))
                worth[head, at] = (far @ mean).sum()
    if name == "infllm" and "selection" not in numbers:
        worth = worth.sum(0, keepdim=True).expand(HKV, -1)
    best = worth.topk(wins).indices.tolist()
    blocks = [[competing[at] for at in some] for some in best]
    return [always | {b * BLOCK + i for b in some for i in range(BLOCK)} for some in blocks]


def naive(name: str, numbers: dict[str, Any], life: Life, position: int) -> torch.Tensor:
    """Attention of one token over what it reads, (Hq, D)."""
    read = [set(range(position + 1))] * HKV
    if position >= life.prompt and not life.whole:
        read = chosen(name, numbers, life, position)
    found = []
    for head, some in enumerate(read):
        at = torch.tensor(sorted(some))
        q = life.q[position].view(HKV, G, D)[head].double()
        shares = (0.4 * q @ life.k[at, head].double().T).softmax(-1)
        found.append(shares @ life.v[at, head].double())
    return torch.cat(found)


@pytest.mark.parametrize("kind", POLICIES)
def test_outputs_are_attention_over_what_was_chosen(kind: str) -> None:
    """Chunks of prompts beside decode queries, ragged rows, blocks begun and used before."""
    torch.manual_seed(3)
    name, numbers = POLICIES[kind]
    policy = policy_of(text(name, numbers), BLOCK)
    with nothing_waits() as guard:
        layer = layer_of(Standing, policy, calls=[], guard=guard)
        beside = layer_of(Listing, policy, listed=[])
        every = served(policy, layer, beside, guard)
    sparse = 0
    for life in every:
        for position in range(life.end):
            expected = naive(name, numbers, life, position)
            assert torch.allclose(life.out[position].double(), expected, atol=1e-4), position
            sparse += position >= life.prompt and not life.whole
    assert sparse > 80
    # The form for CPUs makes the same choices: only its kernel is another.
    tables = [call["block_table"] for call in layer.calls]
    assert len(tables) == len(beside.listed) > 20
    assert all(torch.equal(*pair) for pair in zip(tables, beside.listed, strict=True))
    heads = HKV if policy.best and policy.sets(HKV) > 1 else 1
    for call in layer.calls:
        assert call["q"].shape[1:] == (HKV * G // heads, D)
        assert call["k"].shape == (POOL * heads, BLOCK, HKV // heads, D)
        if heads > 1:  # each request reads a head of its own
            owner = torch.arange(len(call["q"]))[:, None] % HKV
            assert (call["block_table"] % HKV == owner).all()


def test_keys_and_values_of_a_cache_by_its_heads() -> None:
    cache = torch.randn(5, HKV, BLOCK, 2 * D)
    k, v = flash_pages(head_by_head(cache))
    for block in range(5):
        for head in range(HKV):
            assert torch.equal(k[block * HKV + head, :, 0], cache[block, head, :, :D])
            assert torch.equal(v[block * HKV + head, :, 0], cache[block, head, :, D:])
    assert k.data_ptr() == cache.data_ptr()
    assert k.stride() == (BLOCK * 2 * D, 2 * D, D, 1)


def test_tokens_before_heads_are_refused_by_name() -> None:
    """NHD: the heads of two blocks are further apart than those of one."""
    cache = torch.randn(5, BLOCK, HKV, 2 * D).transpose(1, 2)
    with pytest.raises(InvalidValue, match=r"kv_cache_layout.*HND"):
        head_by_head(cache)


def test_another_cache_is_remembered_anew() -> None:
    """An engine that measures its memory has a small one first."""
    layer = layer_of(Standing, policy_of("quest(budget=32)", 16), calls=[], guard=Guard())
    small, large = (torch.zeros(n, HKV, BLOCK, 2 * D) for n in (2, 9))
    first = layer.remember(small)
    assert layer.remember(small) is first
    assert layer.remember(large).blocks == 9


@pytest.mark.parametrize(("kind", "vectors"), [("quest", 1), ("quest, max", G)])
def test_a_kernel_is_compiled_where_a_cache_is_first_seen(
    kind: str, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as many vectors as steps will have, and not again; then it compares."""
    called: list[tuple[int, ...]] = []

    def compared(given: torch.Tensor, data: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        called.append(tuple(given.shape))
        assert data.shape == (3, HKV, 2 * D)
        return given.new_full((len(blocks), HKV, blocks.shape[1]), 5.0)

    kernel = SimpleNamespace(compared=compared)
    monkeypatch.setattr("lil.serving.blocks.summaries._kernel", lambda _: kernel)
    layer = layer_of(Standing, policy_of(text(*POLICIES[kind]), BLOCK), calls=[], guard=Guard())
    known = layer.remember(torch.zeros(2, HKV, BLOCK, 2 * D))
    assert layer.remember(torch.zeros(2, HKV, BLOCK, 2 * D)) is known
    assert called == [(1, HKV, vectors, 2 * D)]
    q, at = torch.randn(4, HKV, G, D), torch.zeros(4, 2, dtype=torch.long)
    assert (known.worth(q, torch.arange(4), at) == 5).all()
    assert called[1:] == [(4, HKV, vectors, 2 * D)]


@pytest.mark.parametrize("shape", [(7, 4), (1, 9), (3, 1), (2, 0), (0, 4)])
@pytest.mark.parametrize("most", [(2**19, 2**17), (300, 300), (60, 60), (1, 1), (2**19, 300)])
@pytest.mark.parametrize("kind", [name for name in POLICIES if name[0] in "iq"])
def test_many_blocks_are_compared_by_turns(
    kind: str, most: tuple[int, int], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several queries, one, a few blocks of one, one block."""
    policy = policy_of(text(*POLICIES[kind]), BLOCK)
    layer = layer_of(Standing, policy, calls=[], guard=Guard())
    known = layer.remember(torch.zeros(9, HKV, BLOCK, 2 * D))
    known.data.copy_(torch.randn_like(known.data))
    q, at = torch.randn(shape[0], HKV, G, D), torch.randint(9, shape)
    positions = torch.arange(shape[0]) + 40
    for name, numbers in zip(("ONE", "SEVERAL"), most, strict=True):
        monkeypatch.setattr(f"lil.serving.blocks.summaries.GATHERED_OF_{name}", numbers)
    found = known.worth(q, positions, at)
    vectors = policy.products(q, positions, ROPE)
    sets, size = vectors.shape[1], vectors.shape[3]
    assert found.shape == (shape[0], sets, shape[1])
    for row, column in np.ndindex(shape):
        block = known.data[at[row, column]].view(sets, size)
        each = (vectors[row] * block[:, None]).sum(-1).amax(-1)
        assert torch.allclose(found[row, :, column], each, atol=1e-4)


@pytest.mark.parametrize("field", ["alibi_slopes", "sinks", "kv_sharing_target_layer_name"])
def test_layers_that_a_table_computes_wrongly_are_refused(field: str) -> None:
    policy = policy_of("window(budget=32)", 16)
    with pytest.raises(InvalidValue, match=field):
        layer_of(Standing, policy, **{field: "some"})

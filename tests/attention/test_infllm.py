"""InfLLM: the parts tokens fall into, representatives, and distances."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from driving import decode, follow, model, prefill, step, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention.core.ropes import Rope
from attention.core.step import Step
from attention.layers.layer import Geometry
from attention.methods.infllm.method import InfLLMLayer, Parts

CPU = torch.device("cpu")
SMALL = attention.InfLLM(budget=32, n_init=5, block=4, topk=2, n_local=12, repr_topk=2)


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
def test_the_budget_is_split_as_promised(
    budget: int, block: int, topk: int, n_init: int, n_local: int
) -> None:
    backend = attention.InfLLM(budget=budget)
    assert backend.parts == Parts(n_init, n_local, block, topk, 4)
    assert n_init + n_local + (topk + 1) * block == budget
    assert backend.exact_until == n_local
    assert backend.params() == {
        "budget": budget,
        "block": block,
        "topk": topk,
        "n_init": n_init,
        "n_local": n_local,
        "repr_topk": 4,
        "selection": "layer",
        "far_position": "window",
        "prefill": "dense",
        "exc_block": None,
    }


@settings(max_examples=200, deadline=None)
@given(budget=st.integers(16, 5000))
def test_every_budget_is_used_up(budget: int) -> None:
    p = attention.InfLLM(budget=budget).parts
    assert p.n_init + p.n_local + (p.topk + 1) * p.block == budget
    assert min(p.n_local, p.topk, p.repr_topk) >= 1


def parts_of(seen: int, p: Parts) -> list[list[int]]:
    """Init, window, remainder and full blocks, token by token from the words of the method."""
    left = list(range(max(seen - p.n_local, 0)))
    init, rest = left[: p.n_init], left[p.n_init :]
    blocks = [rest[i : i + p.block] for i in range(0, len(rest), p.block)]
    window = list(range(len(left), seen))
    return [init, window, blocks[-1] if blocks else [], *blocks[:-1]]


@settings(max_examples=100, deadline=None)
@given(
    seen=st.integers(1, 120),
    n_init=st.integers(0, 9),
    n_local=st.integers(1, 20),
    block=st.integers(1, 8),
    topk=st.integers(0, 4),
)
def test_every_token_is_in_exactly_one_part(
    seen: int, n_init: int, n_local: int, block: int, topk: int
) -> None:
    parts = Parts(n_init, n_local, block, topk, 1)
    geometry = Geometry("infllm", 0, 1, 2, 1, 4, torch.float64, CPU, Rope(None))
    layer = InfLLMLayer(geometry, attention.InfLLM(budget=10_000, **parts._asdict()))
    init, window, remainder, *blocks = parts_of(seen, parts)
    n = np.array([seen])
    assert sorted([*init, *window, *remainder, *chain(*blocks)]) == list(range(seen))
    assert not init + blocks or len(window) == n_local
    assert len(remainder) in range(block + 1)
    assert layer.left(n)[0] == seen - len(window)
    assert layer.full_blocks(n)[0] == len(blocks)
    assert layer.reads(n)[0] == seen - block * max(len(blocks) - topk, 0)
    # Slots: the first tokens in their own pages, each block in one page, no slot twice.
    gone = np.arange(seen - len(window))
    slot = layer.far_slot(gone)
    assert (np.diff(slot) > 0).all()
    assert layer.far_position(torch.from_numpy(slot)).tolist() == gone.tolist()
    for number, tokens_of in enumerate(blocks):
        page = slot[tokens_of] // block
        assert (page == layer.init_pages + number).all()
    empty = sorted(set(range(layer.init_pages * block)) - set(slot.tolist()))
    if len(gone) >= n_init:
        assert (layer.far_position(torch.tensor(empty, dtype=torch.long)) > seen).all()


def test_whole_blocks_are_read_and_never_more_than_topk() -> None:
    m = model()
    p = SMALL.parts
    with SMALL.on(m) as cache:
        prefill(m, cache, [tokens(60), tokens(4, seed=1)])
        for column in tokens(2, 30).T:
            step(m, cache, column)
            for r, seen in enumerate(cache.seen.tolist()):
                init, window, remainder, *blocks = parts_of(seen, p)
                for layer in range(2):
                    heads = cache.read_positions(layer)[r].tolist()
                    assert heads[0] == heads[1]  # one set for the layer
                    read = set(heads[0])
                    assert read >= {*init, *window, *remainder}
                    taken = [b for b in blocks if set(b) & read]
                    assert all(set(b) <= read for b in taken)
                    assert len(taken) == min(len(blocks), p.topk)


def representatives(cache, layer: int = 0) -> torch.Tensor:
    """(blocks, Hkv, D) of the first row."""
    means = cache.layers[layer].state["means"].data[0, 0]
    return means.unflatten(-1, (2, -1))


def unroped_keys(m, feed) -> torch.Tensor:
    """Keys (Hkv, n, D) of the first layer, as the projection made them while `feed()` ran."""
    raw: list[torch.Tensor] = []
    hook = m.model.layers[0].self_attn.k_proj.register_forward_hook(
        lambda *call: raw.append(call[2].detach())
    )
    try:
        feed()
    finally:
        hook.remove()
    return torch.cat(raw, dim=1)[0].unflatten(-1, (2, -1)).transpose(0, 1)


@pytest.mark.parametrize("prompt", [1, 20, 77])
def test_representatives_of_all_keys_are_the_mean(prompt: int) -> None:
    m, ids = model(), tokens(1, 90)
    p = SMALL.parts
    backend = attention.InfLLM(**{**SMALL.params(), "repr_topk": p.block})
    with backend.on(m) as cache:
        keys = unroped_keys(m, lambda: follow(m, cache, [ids[0, :prompt]], ids[:, prompt:]))
        full = len(parts_of(90, p)) - 3
        blocks = keys[:, p.n_init :][:, : full * p.block].unflatten(1, (full, p.block))
        want = blocks.mean(2).transpose(0, 1)
        assert (representatives(cache)[:full] - want).abs().max() < 1e-12


@pytest.mark.parametrize("chunk", [None, 7])
def test_representatives_are_the_keys_with_most_mass(chunk: int | None) -> None:
    """Mass of a prefill is that of transformers' own probabilities, counted in the window."""
    m, ids, p = model(), tokens(1, 60), SMALL.parts
    with SMALL.on(m) as cache:
        keys = unroped_keys(m, lambda: prefill(m, cache, [ids[0]], chunk))
        found = representatives(cache)
    before = m.config._attn_implementation
    m.set_attn_implementation("eager")
    with torch.no_grad():
        probs = m(input_ids=ids, use_cache=False, output_attentions=True).attentions[0][0]
    m.set_attn_implementation(before)
    near = torch.arange(60)[:, None] - torch.arange(60) < p.n_local
    mass = (probs * near).sum(1).unflatten(0, (2, 2)).sum(1)
    for b in range(len(parts_of(60, p)) - 3):
        start = p.n_init + p.block * b
        for head in range(2):
            chosen = mass[head, start : start + p.block].topk(2).indices + start
            want = keys[head, chosen].mean(0)
            assert (found[b, head] - want).abs().max() < 1e-9


def test_mass_of_decode_steps_is_collected_in_the_window_only() -> None:
    """Each step gives a KV head's group a mass of G, less what went to far tokens."""
    m = model()
    with SMALL.on(m) as cache:
        prefill(m, cache, [tokens(9)])
        layer = cache.layers[0]
        for column in tokens(1, 20).T:
            state = layer.state
            before = state["mass"].data.clone()
            seen = int(cache.seen)
            step(m, cache, column)
            now = state["mass"].data
            old = before[:, :, : min(seen, 12)].clone()
            if seen >= 12:
                old[:, :, seen % 12] = 0  # overwritten by the new token
            grown = now.sum(-1) - old.sum(-1)
            if seen < 12:
                assert (grown - 2).abs().max() < 1e-9
            else:
                assert ((grown > 0) & (grown < 2)).all()
                rest = (seen - 12 - 5) % 4
                if seen >= 17:  # the one that left is in a block, with the mass it left with
                    left = state["left_mass"].data[:, :, rest]
                    assert torch.equal(left, before[:, :, seen % 12])


@pytest.mark.parametrize("chunk", [2, 5, 16, 29])
def test_state_after_chunks_is_the_state_after_one_prefill(chunk: int) -> None:
    m, text = model(), [tokens(80), tokens(64, seed=1)]
    with SMALL.on(m) as cache:
        chunked = cache.new()
        prefill(m, cache, text)
        prefill(m, chunked, text, chunk)
        for one, other in zip(cache.layers, chunked.layers, strict=True):
            for r, seen in enumerate((80, 64)):
                left = one.left(np.array([seen]))[0]
                full = one.full_blocks(np.array([seen]))[0]
                used = {"means": full, "far_k": one.far_slot(left - 1) + 1}
                used["far_v"] = used["far_k"]
                used |= dict.fromkeys(("near_k", "near_v", "mass"), 12)
                for name, n in used.items():
                    a, b = (x.state[name].data[r, :, : int(n)] for x in (one, other))
                    assert (a - b).abs().max() < 1e-9, name


def test_local_and_far_probability_add_up_to_one() -> None:
    """Values of one: whatever is read, the output is one."""
    layer, now = probe(40)
    ones = torch.ones(1, 1, 1, 4, dtype=torch.float64)
    q = torch.randn(1, 2, 1, 4, dtype=torch.float64)
    for name in ("near_v", "far_v"):
        layer.state[name].data.fill_(1.0)
    out = layer.forward(q, ones, ones, 1.0, now)
    assert (out - 1).abs().max() < 1e-12


class Radians(torch.nn.Module):
    """A rotary embedding over four components."""

    rope_type = "default"

    def forward(self, _, position_ids):
        angle = position_ids[..., None].double() * torch.tensor([1.0, 0.1], dtype=torch.float64)
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


def probe(n: int, seed: int = 0) -> tuple[InfLLMLayer, Step]:
    """A layer that has seen n random tokens, and the step of the next one."""
    torch.manual_seed(seed)
    geometry = Geometry("infllm", 0, 1, 2, 1, 4, torch.float64, CPU, Rope(Radians()))
    parts = Parts(3, 6, 4, 2, 2)
    layer = InfLLMLayer(geometry, attention.InfLLM(budget=64, **parts._asdict()))
    x = torch.randn(3, 1, 2, n, 4, dtype=torch.float64)
    new, none = np.array([n]), np.zeros(1, dtype=np.int64)
    layer.forward(x[0], x[1][:, :1], x[2][:, :1], 1.0, Step(none, new, n, CPU))
    return layer, Step(new, np.ones_like(new), 1, CPU)


def test_swapping_two_far_tokens_changes_nothing() -> None:
    """All far tokens are at one distance, so their order cannot matter."""
    k = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    q = torch.randn(1, 2, 1, 4, dtype=torch.float64)
    one, now = probe(15)  # nine have left: three first, a full block, a remainder
    want = one.forward(q, k, k, 1.0, now)
    other, now = probe(15)
    a, b = other.far_slot(np.array([1, 5]))
    for name in ("far_k", "far_v"):
        data = other.state[name].data
        data[:, :, [a, b]] = data[:, :, [b, a]]
    assert (other.forward(q, k, k, 1.0, now) - want).abs().max() < 1e-12
    other, now = probe(15)
    for name in ("near_k", "near_v"):
        data = other.state[name].data
        data[:, :, [0, 1]] = data[:, :, [1, 0]]
    # Order in the ring does not matter either: positions are in the keys.
    ring = other.forward(q, k, k, 1.0, now)
    assert ring.isfinite().all()


def test_no_far_key_is_farther_than_the_window() -> None:
    """Logits of far keys against the definition: unroped key, query roped at n_local - 1."""
    layer, now = probe(15)
    raw_q = torch.randn(1, 2, 1, 4, dtype=torch.float64)

    def rope(x: torch.Tensor, position: int) -> torch.Tensor:
        cos, sin = Radians()(x, torch.tensor([[position]]))
        half = torch.cat((-x[..., 2:], x[..., :2]), -1)
        return x * cos + half * sin

    turned = layer.far_query(rope(raw_q, 15).view(1, 2, 4), now)
    assert (turned.view(1, 2, 1, 4) - rope(raw_q, 5)).abs().max() < 1e-12
    fresh, _ = probe(15)
    torch.manual_seed(0)
    keys = torch.randn(3, 1, 2, 15, 4, dtype=torch.float64)[1][0, 0]
    for position in range(9):
        slot = int(fresh.far_slot(np.array(position)))
        stored = fresh.state["far_k"].data[0, 0, slot]
        assert (rope(stored, position) - keys[position]).abs().max() < 1e-12


def test_rows_with_repeating_text_do_not_depend_on_their_batch() -> None:
    """Equal tokens tie; the older block wins however products are rounded."""
    m = model()
    period = tokens(5).repeat(40)
    with SMALL.on(m) as cache:
        texts = [period[:100], period[:37], tokens(90, seed=2)]
        given = torch.stack([period[100:140], period[37:77], tokens(40, seed=3)])
        got = follow(m, cache, texts, given)
        read = [x for i in range(2) for x in cache.read_positions(i)[:2]]
        for r in range(2):
            alone = cache.new()
            want = follow(m, alone, [texts[r]], given[r : r + 1])[0]
            assert (got[r] - want).abs().max() < 1e-9
            for i in range(2):
                assert torch.equal(alone.read_positions(i)[0], read[2 * i + r])


def test_crop_is_refused_with_a_reason() -> None:
    m = model()
    with SMALL.on(m) as cache:
        prefill(m, cache, [tokens(30)])
        assert not cache.is_croppable
        with pytest.raises(attention.InvalidValue, match="cannot bring back"):
            cache.crop(-1)
        decode(m, cache, tokens(1, 3))


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 15},
        {"budget": 64, "block": 0},
        {"budget": 64, "n_local": 0},
        {"budget": 64, "n_local": 40},
        {"budget": 64, "topk": 99},
        {"budget": 64, "repr_topk": 0},
        {"budget": 64, "n_init": 1.5},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.InfLLM(**arguments)

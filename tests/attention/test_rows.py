"""A row of a ragged batch behaves like that row alone, whatever happens to the other rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from driving import BACKENDS, decode, follow, model, prefill, step, tokens

import attention

LENGTHS = (3, 27, 30, 16)
STATS = ("kept_max", "read_max", "read_mean", "keys_read", "bytes")


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[torch.Tensor]:
    return [tokens(n, seed=seed + i) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_ragged_batch_is_its_rows(backend: attention.Backend, chunk: int | None) -> None:
    """Chunks of one column: some rows are still all padding while others decode."""
    m, given = model(), tokens(len(LENGTHS), 24)
    with backend.on(m) as cache:
        got = follow(m, cache, prompts(), given, chunk)
        stats = cache.row_stats()
        for r, prompt in enumerate(prompts()):
            alone = cache.new()
            # The alone row's chunks end where the padded row's do.
            first = (max(LENGTHS) - len(prompt)) % (chunk or 1)
            if chunk and first:
                prefill_columns(m, alone, prompt, chunk, first)
                want = decode(m, alone, given[r : r + 1])[0]
                assert (got[r, 1:] - want).abs().max() < 1e-9
            else:
                want = follow(m, alone, [prompt], given[r : r + 1], chunk)[0]
                assert (got[r] - want).abs().max() < 1e-9
            for layer in range(2):
                assert torch.equal(alone.kept_positions(layer)[0], cache.kept_positions(layer)[r])
                assert torch.equal(alone.read_positions(layer)[0], cache.read_positions(layer)[r])
            own = alone.row_stats()
            for name in STATS:
                assert getattr(own, name)[0] == getattr(stats, name)[r], name


@torch.no_grad()
def prefill_columns(m, cache, prompt, chunk, first) -> None:
    """Feed a row alone with the chunk borders it had in the padded batch."""
    borders = [0, *range(chunk - first, len(prompt), chunk), len(prompt)]
    for start, end in pairwise(borders):
        m(input_ids=prompt[None, start:end], past_key_values=cache)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_replaced_rows_start_anew_and_the_others_do_not_notice(
    backend: attention.Backend,
) -> None:
    m, given = model(), tokens(len(LENGTHS), 40, seed=9)
    newcomers = prompts((45, 5), seed=20)
    with backend.on(m) as cache:
        untouched = cache.new()
        follow(m, cache, prompts(), given[:, :20])
        follow(m, untouched, prompts(), given[:, :20])
        fresh = cache.new()
        prefill(m, fresh, newcomers)
        cache.replace_rows([3, 1], fresh, source_rows=[0, 1])
        assert cache.seen.tolist() == [23, 5, 50, 45]
        got = decode(m, cache, given[:, 20:])
        want = decode(m, untouched, given[:, 20:])
        # Where rows hold or read different numbers of keys, the widest row decides how wide the
        # products are, and so their rounding.
        ragged = backend.name in ("raas", "rkv", "snapkv") or getattr(backend, "top_p", None)
        rounding = 1e-12 if ragged else 0
        assert (got[[0, 2]] - want[[0, 2]]).abs().max() <= rounding
        for r, prompt in ((3, newcomers[0]), (1, newcomers[1])):
            alone = follow(m, cache.new(), [prompt], given[r : r + 1, 20:])[0, 1:]
            assert (got[r] - alone).abs().max() < 1e-9


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_replacing_a_short_row_by_a_long_one_grows_the_state(backend: attention.Backend) -> None:
    m = model()
    with backend.on(m) as cache:
        prefill(m, cache, prompts((2, 3)))
        long = cache.new()
        given = tokens(2, 12)
        follow(m, long, prompts((150,), seed=5), given[:1])
        cache.replace_rows([1], long)
        more = tokens(2, 6, seed=3)
        got, want = decode(m, cache, more)[1], decode(m, long, more[1:])[0]
        assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_selected_rows_go_on_as_before(backend: attention.Backend) -> None:
    m, given = model(), tokens(len(LENGTHS), 40, seed=4)
    order = [2, 0, 2]
    with backend.on(m) as cache:
        whole = cache.new()
        follow(m, whole, prompts(), given[:, :20])
        follow(m, cache, prompts(), given[:, :20])
        cache.select_rows(order)
        for layer in range(2):
            for ours, r in enumerate(order):
                assert torch.equal(
                    cache.read_positions(layer)[ours], whole.read_positions(layer)[r]
                )
        got = decode(m, cache, given[order, 20:])
        want = decode(m, whole, given[:, 20:])[order]
        assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_order_of_rows_does_not_matter(backend: attention.Backend) -> None:
    m, given, order = model(), tokens(4, 20), [3, 1, 0, 2]
    texts = prompts()
    with backend.on(m) as cache:
        one = follow(m, cache, texts, given)
        other = follow(m, cache.new(), [texts[r] for r in order], given[order])
    assert (one[order] - other).abs().max() < 1e-9


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b.name != "random"], ids=str)
def test_order_of_kv_groups_does_not_matter(backend: attention.Backend) -> None:
    """Swap the two groups in all projections: the model is the same function.

    Not with `random`, whose sample depends on the number of the head.
    """
    m, given = model(), tokens(2, 24)
    swapped = model("llama", (4, 2), 2).__class__(m.config).to(torch.float64).eval()
    swapped.load_state_dict(m.state_dict())
    copy_buffers(m, swapped)
    with torch.no_grad():
        for layer in swapped.model.layers:
            a = layer.self_attn
            for p in (a.q_proj, a.k_proj, a.v_proj):
                p.weight.copy_(p.weight.unflatten(0, (2, -1)).flip(0).flatten(0, 1))
            o = a.o_proj.weight
            o.copy_(o.unflatten(1, (2, -1)).flip(1).flatten(1, 2))
    with backend.on(m) as cache:
        want = follow(m, cache, prompts((20, 3)), given)
        kept = cache.kept_positions(1)[0]
    with backend.on(swapped) as cache:
        got = follow(swapped, cache, prompts((20, 3)), given)
        groups = cache.kept_positions(1)[0].unflatten(0, (2, -1))
        assert torch.equal(groups.flip(0).flatten(0, 1), kept)
    assert (got - want).abs().max() < 1e-9


def copy_buffers(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """The exact norms and rotary tables of `oracles.models.make_exact`."""
    from oracles.models import make_exact

    make_exact(target)
    assert (target.model.rotary_emb.inv_freq == source.model.rotary_emb.inv_freq).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_repeating_kv_heads_by_hand_changes_nothing(backend: attention.Backend) -> None:
    """(2 query, 1 KV) against the same KV head written twice as (2, 2).

    With one set per KV head the sets of the copies may differ; so only where they cannot.
    """
    if (
        backend.name not in ("full", "sink", "window", "tova")
        and getattr(backend, "gqa", "") != "query_head"
    ):
        pytest.skip("the methods that choose per KV head choose anew for each copy")
    grouped = model("llama", (4, 2))
    single = model("llama", (4, 4)).__class__(
        type(grouped.config)(**{**grouped.config.to_dict(), "num_key_value_heads": 4})
    )
    single.to(torch.float64).eval()
    state = grouped.state_dict()
    for name, weight in state.items():
        if "k_proj" in name or "v_proj" in name:
            state[name] = weight.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    single.load_state_dict(state)
    copy_buffers(grouped, single)
    given = tokens(2, 24)
    with backend.on(grouped) as cache:
        want = follow(grouped, cache, prompts((20, 3)), given)
    with backend.on(single) as cache:
        got = follow(single, cache, prompts((20, 3)), given)
    assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_beams_reorder_the_state(backend: attention.Backend) -> None:
    m = model()
    prompt = tokens(1, 20)
    with backend.on(m) as cache, torch.no_grad():
        sequence = m.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache,
            max_new_tokens=12,
            num_beams=3,
            do_sample=False,
        )[0]
        assert len(sequence) == 32
        # A beam's score is the sum of its own log probabilities, which needs its own state.
        replay = cache.new()
        logits = follow(m, replay, [prompt[0]], sequence[None, 20:])[0, :-1]
        scores = logits.log_softmax(-1).gather(-1, sequence[20:, None])
        best = m.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache.new(),
            max_new_tokens=12,
            num_beams=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            length_penalty=0.0,
        )
    assert float(best.sequences_scores[0]) == pytest.approx(float(scores.sum()), abs=1e-5)


def test_bad_rows_are_refused() -> None:
    m = model()
    with attention.Full().on(m) as cache:
        prefill(m, cache, prompts())
        fresh = cache.new()
        prefill(m, fresh, prompts((4, 5)))
        for call in (
            lambda: cache.select_rows([4]),
            lambda: cache.select_rows([-1]),
            lambda: cache.replace_rows([0], fresh),
            lambda: cache.replace_rows([0, 0], fresh),
            lambda: cache.replace_rows([0], fresh, [2]),
        ):
            with pytest.raises(attention.InvalidValue, match="row"):
                call()
        with (
            attention.Full().on(m) as other,
            pytest.raises(attention.InvalidValue, match="same"),
        ):
            cache.replace_rows([0], other)
        step(m, fresh, tokens(2))  # and the refusals left everything usable


def test_selecting_no_row_and_one_row_of_many() -> None:
    m = model()
    with attention.H2O(budget=8).on(m) as cache:
        follow(m, cache, prompts(), tokens(4, 12))
        cache.select_rows([2])
        assert cache.seen.tolist() == [42]
        assert cache.row_stats().kept_max.tolist() == [7]
        cache.select_rows([])
        assert cache.seen.tolist() == []

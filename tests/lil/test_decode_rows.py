"""A row's tokens do not depend on its batch, on replaced neighbours or on a reused prefix."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import requests_of

import attention
import lil
from tests.sampling import some_slow

LENGTHS = (1, 5, 9, 17, 30, 12, 3, 40)
BACKENDS = ("full", "sink", "h2o", "quest", "infllm")


def prompts(seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(60) for _ in range(n)] for n in LENGTHS]


def backend(name: str, budget: int = 32) -> attention.Backend:
    return attention.get(name) if name == "full" else attention.get(name, budget=budget)


@torch.inference_mode()
def oracle(model, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens of one sequence by transformers alone, everything read again at each token."""
    ids = torch.tensor([prompt])
    for _ in range(count):
        logits = model(input_ids=ids, use_cache=False).logits[0, -1]
        ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
    return ids[0, len(prompt) :].tolist()


def ids(traces: list[lil.Trace]) -> list[list[int]]:
    return [list(trace.new_ids) for trace in traces]


@pytest.mark.parametrize("family", some_slow(["qwen", "llama"], 1))
def test_ragged_rows_with_replacement_equal_transformers_alone(family, tokenizer, request):
    model = request.getfixturevalue(family)
    caps = [40, 3, 25, 60, 1, 50, 33, 8]
    expected = [oracle(model, p, cap) for p, cap in zip(prompts(), caps, strict=True)]
    assert len({token for row in expected for token in row}) > 15  # not one dead loop
    for batch_size in (3, 100):
        rows = requests_of(prompts(), max_new_tokens=caps)
        traces = lil.decode(model, tokenizer, rows, batch_size=batch_size)
        assert ids(traces) == expected
        assert [trace.finish for trace in traces] == ["length"] * 8
        assert [trace.prompt_ids for trace in traces] == [tuple(p) for p in prompts()]


@pytest.mark.parametrize("name", some_slow(BACKENDS, {2, 3}))
def test_every_backend_gives_a_row_the_tokens_it_has_alone(name, qwen, tokenizer):
    caps = [40, 12, 20, 30, 5, 28, 24, 13]
    rows, options = requests_of(prompts(), max_new_tokens=caps), {"backend": backend(name)}
    alone = lil.decode(qwen, tokenizer, rows, batch_size=1, **options)
    batched = lil.decode(qwen, tokenizer, rows, batch_size=3, **options)
    for alone_row, other in zip(alone, batched, strict=True):
        assert other.new_ids == alone_row.new_ids
        assert other.keys_kept_max == alone_row.keys_kept_max
        assert other.keys_read_max == alone_row.keys_read_max
        assert other.keys_read_mean == pytest.approx(alone_row.keys_read_mean, nan_ok=True)
        assert other.checks[-1].keys_read == alone_row.checks[-1].keys_read
        assert other.curve == alone_row.curve


@pytest.mark.parametrize("temperature", some_slow([0.7, 2.0], 1))
def test_sampled_rows_do_not_depend_on_their_batch(temperature, qwen, tokenizer):
    options = {"temperature": temperature, "top_k": 40, "top_p": 0.95, "seed": 3}
    rows = requests_of(prompts(), max_new_tokens=[16, 4, 12, 16, 1, 16, 12, 8])
    runs = [ids(lil.decode(qwen, tokenizer, rows, batch_size=size, **options)) for size in (1, 3)]
    assert runs[0] == runs[1]
    assert runs[0] != ids(lil.decode(qwen, tokenizer, rows, **{**options, "seed": 4}))


def test_a_random_stream_belongs_to_its_item_and_sample(qwen, tokenizer):
    options = {"max_new_tokens": 20, "temperature": 1.5, "batch_size": 2}
    alone_row = prompts()[3]
    names = ["a", "b", "a", "a"]
    rows = requests_of([alone_row] * 4, item_id=names, sample_index=[0, 0, 1, 0])
    traces = lil.decode(qwen, tokenizer, rows, **options)
    first, other_item, other_sample, same = ids(traces)
    assert first == same
    assert first != other_item
    assert first != other_sample


@pytest.mark.parametrize("temperature", some_slow([1.0, 0.0], 1))
@pytest.mark.parametrize("name", some_slow(BACKENDS, {1, 2}))
def test_a_reused_prefix_changes_nothing(name, temperature, qwen, tokenizer):
    """Tokens, curve, keys and bytes are those of a run from scratch; seconds are estimated."""
    chosen = backend(name, budget=64)
    rows = prompts()[:6]
    options = {"backend": chosen, "max_new_tokens": 90, "batch_size": 3, "check_every": 10}
    options["temperature"] = temperature
    scratch = lil.decode(qwen, tokenizer, rows, **options)
    room = [min(70, int(min(1e6, chosen.exact_until)) - len(row)) for row in rows]
    lengths = [room[0], 1, room[2] // 2, 0, max(0, room[4]), 10 if room[5] > 10 else 0]
    assert sum(lengths) > 20
    forced = [trace.new_ids[: max(0, n)] for trace, n in zip(scratch, lengths, strict=True)]
    reused = lil.decode(qwen, tokenizer, requests_of(rows, forced=forced), **options)
    for old, new, tokens in zip(scratch, reused, forced, strict=True):
        assert new.reused_tokens == len(tokens)
        assert new.new_ids == old.new_ids
        assert (new.finish, new.curve) == (old.finish, old.curve)
        for field in ("keys_kept_max", "keys_read_max", "cache_bytes_peak"):
            assert getattr(new, field) == getattr(old, field), field
        assert new.keys_read_mean == pytest.approx(old.keys_read_mean)
        assert new.dense_layer_keys_read_mean == pytest.approx(old.dense_layer_keys_read_mean)
        assert [c.tokens for c in new.checks] == [c.tokens for c in old.checks]
        assert [c.keys_read for c in new.checks] == [c.keys_read for c in old.checks]
        for field in ("read_sum", "dense_read_sum"):
            sums = [getattr(c, field) for c in old.checks]
            assert [getattr(c, field) for c in new.checks] == pytest.approx(sums), field
        assert all(c.seconds >= 0 for c in new.checks)
        if name == "full":  # others hold method state that is not proportional to the tokens
            assert [c.cache_bytes for c in new.checks] == pytest.approx(
                [c.cache_bytes for c in old.checks]
            )

"""Rows fill the memory that is free, by what each method stores of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_models import build_model, requests_of

import attention
import lil
from attention.core import devices
from attention.errors import InvalidValue
from attention.patching.captured import padded
from lil.decoding import filling, loop

BACKENDS = [
    *(attention.Full(), attention.Quest(budget=64), attention.InfLLM(budget=64)),
    *(attention.get(name, budget=64) for name in ("h2o", "sink", "snapkv")),
]
CAP = 509  # behind one token, with two steps too many: the longest row has 512


def rows_in(free: int, model: Any, backend: attention.Backend) -> Iterator[int]:
    """Rows in so much memory, then bytes of as many that are as long as can be: used, in all."""
    options = lil.DecodeOptions(backend=backend, batch_size="auto")
    requests = [lil.Request((1,), CAP)] * 1000
    with pytest.MonkeyPatch.context() as patch, backend.on(model) as cache, torch.inference_mode():
        patch.setattr(devices, "free_memory", lambda _: free)
        patch.setattr(filling, "prompt_tokens", lambda _: 1)
        yield (rows := filling.rows_together(model, cache, options, requests))
        cache.session.room = padded(rows), filling.longest_row(options, requests)
        assert cache.session.room[1] == 512  # of which a lag of two steps may fill the last two
        model(torch.ones(rows, 500, dtype=torch.int64), past_key_values=cache, logits_to_keep=1)
        for at in range(500, 512):
            position = torch.full((rows, 1), at)
            model(torch.ones_like(position), position_ids=position, past_key_values=cache)
        assert cache.stats().seen == [512] * rows
        yield cache.stats().bytes
        state = [x.data.nbytes for layer in cache.layers for x in layer.state.values()]
        yield sum(state) + max(state)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_rows_fit_and_one_class_more_would_not(backend: attention.Backend, qwen: Any) -> None:
    for free in (1_000_000, 4_300_000):
        rows, used, stored = rows_in(free, qwen, backend)
        assert used <= stored <= free
        more = next(n for n in range(rows + 1, 999) if padded(n) == n)
        assert rows == filling.CPU_ROWS or stored / rows * more > 0.8 * free


def test_rows_of_an_evicting_method_are_more_by_the_lengths(
    qwen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "CPU_ROWS", 1000)
    full, h2o = (next(rows_in(30_000_000, qwen, x)) for x in (BACKENDS[0], BACKENDS[3]))
    assert h2o / full == pytest.approx(512 / 64, rel=0.2)  # in classes of 16 and 32
    for size, message in ((1000, "'auto': .* 900 bytes are free"), (None, "mean 'auto'")):
        with pytest.raises(attention.InvalidValue, match=f"batch_size = .*{message}"):
            next(rows_in(size, qwen, BACKENDS[0])) if size else lil.DecodeOptions(batch_size="aut")


def test_prompts_are_read_a_bounded_number_of_tokens_at_once(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an accelerator too; a run says how many rows are decoded together."""
    model, sizes, batches = build_model("llama"), list[int](), list[int]()
    prompts = requests_of([[5] * 9, [9] * 12, [30] * 40, [1, 2], [4] * 11], forced=[()] * 5)
    options = {"max_new_tokens": 5, "on_batch": batches.append}
    wanted = lil.decode(model, tokenizer, prompts, batch_size=3, **options)
    monkeypatch.setattr(devices, "is_synchronous", lambda _: False)
    monkeypatch.setattr(loop, "prompt_tokens", lambda _: 24)
    model.register_forward_pre_hook(
        lambda _module, _args, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    traces = lil.decode(model, tokenizer, prompts, batch_size="auto", **options)
    assert [trace.new_ids for trace in traces] == [trace.new_ids for trace in wanted]
    assert (batches, [n for n in sizes if n > 5]) == ([3, 5], [24, 40, 22])


@pytest.mark.parametrize("name", ["raas", "h2o", "sink", "rkv"])
def test_a_prompt_that_leaves_no_budget_is_refused_before_any_is_decoded(
    name: str, qwen: Any, tokenizer: Any
) -> None:
    backend, seen = attention.get(name, budget=64, keep_prompt=True), list[Any]()
    prompts = [[5] * 3] * 3 + [[5] * 64]
    message = r"prompt = '64 tokens'.* budget 64 - .* keep_prompt"
    with torch.no_grad(), backend.on(qwen) as cache, pytest.raises(InvalidValue, match=message):
        qwen(torch.tensor(prompts[3:]), past_key_values=cache)
    with pytest.raises(InvalidValue, match=message):
        lil.decode(
            qwen, tokenizer, prompts, backend=backend, batch_size=2, max_new_tokens=4,
            on_token=lambda *token: seen.append(token),
        )  # fmt: skip
    assert not seen

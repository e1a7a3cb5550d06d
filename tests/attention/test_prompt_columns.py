"""What is prompt is read whole, what is not by decode queries, however many tokens come at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from examples import BACKENDS, KEEP_ALL
from torch import Tensor

import attention
from attention.core import devices
from attention.patching.cache import AttentionCache
from attention.testing.driving import decode, left_padded, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model
from tests.attention.zoo import WINDOW, animal, sliding_layers

# Rows differ in length; one has its prompt end where another's goes on.
PROMPTS = (7, 20, 13)
LENGTH = 62
# Quest, oracle and such take drafts back; the others cannot.
SPARSE = tuple(b for b in KEEP_ALL if b.rewindable and b.name != "full")
LOSING = tuple(b for b in BACKENDS if not b.rewindable)
GUESSES = ("assistant_model", "prompt_lookup_num_tokens")
OLDER = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23)


def texts() -> list[Tensor]:
    return [tokens(LENGTH, seed=r) for r in range(len(PROMPTS))]


@torch.no_grad()
def feed(m: Any, cache: AttentionCache, rows: Sequence[Tensor], first: int, cut: int) -> Tensor:
    """Logits (B, LENGTH, V) of rows that come in columns: `first` of them, then `cut` at a time."""
    ids, mask = left_padded(rows)
    places, result = (mask.cumsum(-1) - 1).clamp(min=0), []
    for begin in (0, *range(first, ids.shape[1], cut)):
        end = first if begin < first else min(begin + cut, ids.shape[1])
        result.append(
            m(
                input_ids=ids[:, begin:end],
                attention_mask=mask[:, :end],
                position_ids=places[:, begin:end],
                past_key_values=cache,
            ).logits
        )
    return torch.cat(result, dim=1)


def one_by_one(m: Any, cache: AttentionCache, row: Tensor, prompt: int) -> Tensor:
    """Logits (n, V) from the prompt's last token on."""
    first = prefill(m, cache, [row[:prompt]])[:, -1]
    return torch.cat((first, decode(m, cache, row[None, prompt:])[0]))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@torch.no_grad()
def test_tokens_that_come_together_are_read_one_after_the_other(
    backend: attention.Backend,
) -> None:
    """Ragged rows, of which the prompts end in other columns of the same forward."""
    m, rows = tiny_model(), texts()
    # Rows of another length, so that each prompt ends in a column of its own.
    rows = [row[: LENGTH - 5 * r] for r, row in enumerate(rows)]
    with backend.on(m) as cache:
        want = [one_by_one(m, cache.new(), r, n) for r, n in zip(rows, PROMPTS, strict=True)]
        for first, cut in ((LENGTH, 1), (34, 9), (30, 1)):
            fresh = cache.new(prompts=PROMPTS)
            got = feed(m, fresh, rows, first, cut)
            for r, due in enumerate(want):
                gap = (got[r, -len(due) :] - due).abs().max()
                assert gap < 1e-9, f"row {r}, {first} columns, then {cut} at a time: {gap:.1e}"


@torch.no_grad()
def test_layers_that_share_a_choice_are_cut_between_forwards() -> None:
    """Ragged rows hold what each holds alone; a forward that fills one and goes on is refused."""
    m, rows = tiny_model(), texts()
    with attention.RKV(budget=20, window=4, buffer=5, shared=True).on(m) as cache:
        want = [one_by_one(m, cache.new(), r, n) for r, n in zip(rows, PROMPTS, strict=True)]
        for cut in (1, 5):
            got = feed(m, fresh := cache.new(prompts=PROMPTS), rows, 20, cut)
            for r, due in enumerate(want):
                assert (got[r, -len(due) :] - due).abs().max() < 1e-9
            kept = [fresh.kept_positions(layer) for layer in range(2)]
            for one, other in zip(*kept, strict=True):
                assert (one == other[:1]).all()
                assert (other == one[:1]).all()
        with pytest.raises(attention.InvalidValue, match="at most 20 with those stored"):
            feed(m, cache.new(prompts=PROMPTS), rows, 20, 6)


# Drafts


def generated(m: Any, cache: AttentionCache, **more: Any) -> Tensor:
    ids = tokens(1, 24)
    out: Tensor = m.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=36,
        do_sample=False,
        past_key_values=cache,
        # None that is ever chosen: older versions cannot look for no end at all among drafts.
        eos_token_id=m.config.vocab_size,
        **more,
    )
    return out


@pytest.mark.parametrize("backend", SPARSE, ids=str)
def test_drafts_are_verified_by_decode_queries(backend: attention.Backend) -> None:
    """An assistant that is always right under full attention, one that rarely is, and a lookup."""
    m = tiny_model()
    never, right = tiny_model("qwen3"), copy.deepcopy(m)
    guesses: tuple[dict[str, Any], ...] = (
        {"assistant_model": right},
        {"assistant_model": never},
        {"prompt_lookup_num_tokens": 3},
    )
    with attention.Full().on(m) as cache:
        full = generated(m, cache)
    with backend.on(m) as cache:
        want = generated(m, cache.new())
        for guess in guesses:
            assert torch.equal(generated(m, cache.new(), **guess), want)
        prompt_lengths = cache.new(prompts=[24])
        assert torch.equal(generated(m, prompt_lengths, **guesses[0]), want)
    assert not torch.equal(full, want)


@pytest.mark.skipif(
    not hasattr(transformers.Cache, "activate_past_recording"),
    reason="this transformers announces no drafts before the first forward: refused",
)
@pytest.mark.parametrize("backend", [attention.Full(), SPARSE[0]], ids=str)
def test_drafts_are_taken_back_behind_a_window(backend: attention.Backend) -> None:
    m = animal("gemma3")
    with backend.on(m) as cache:
        want = generated(m, cache.new())
        for guess in ({"assistant_model": animal("llama")}, {"prompt_lookup_num_tokens": 3}):
            assert torch.equal(generated(m, drafted := cache.new(), **guess), want)
        assert drafted.read_positions(sliding_layers("gemma3")[0])[0].shape[-1] == WINDOW


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("backend", LOSING, ids=str)
def test_methods_that_cannot_take_drafts_back_refuse_them(
    backend: attention.Backend, guess: str
) -> None:
    m = tiny_model()
    value = {"assistant_model": copy.deepcopy(m), "prompt_lookup_num_tokens": 3}[guess]
    with backend.on(m) as cache:
        with pytest.raises(attention.InvalidValue, match=f"drafts under {backend.name}"):
            generated(m, cache, **{guess: value})
        # Before anything was computed; older versions ask with the first draft.
        assert not cache.is_initialized or OLDER


def test_prompts_on_a_gpu_are_never_read_by_an_attention_that_plans_each_length() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with devices.flash_first(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() is before

"""Every family behaves as in transformers, its own sliding layers and attention sinks included."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache
from zoo import FAMILIES, WINDOW, WITHOUT_ROOM, animal, sliding_layers

import attention
from attention.core.ropes import Rope, rotate
from attention.families import check_family
from attention.testing.driving import decode, follow, prefill, step
from attention.testing.driving import text as tokens

pytestmark = pytest.mark.filterwarnings("ignore:every layer of this mistral")
# One of every way to hold a state, besides the model's own sliding layers.
KINDS: tuple[attention.Backend, ...] = (
    attention.Full(),
    attention.Sink(budget=9),
    attention.H2O(budget=10),
    attention.Quest(budget=12, page=3, dense_layers=0),
    attention.InfLLM(budget=16, n_init=2, block=2, topk=2, n_local=6),
    attention.SnapKV(budget=11),
)
PAIRS = [
    *(("gemma3", backend) for backend in KINDS),
    ("gpt_oss", KINDS[2]),
    ("gpt_oss", KINDS[4]),
    ("qwen2_sliding", KINDS[0]),
    ("qwen2_sliding", KINDS[2]),
    ("mistral_sliding", KINDS[0]),
]
pairs = pytest.mark.parametrize(
    ("family", "backend"), PAIRS, ids=[f"{family}-{b.name}" for family, b in PAIRS]
)


@torch.no_grad()
def own(m: Any, ids: Tensor, prompt: int) -> Tensor:
    """transformers' logits after the prompt and each further token, by its own cache."""
    cache = DynamicCache(config=m.config)
    parts = ids.tensor_split(list(range(prompt, ids.shape[1])), dim=1)
    out = [m(input_ids=part, past_key_values=cache).logits[:, -1] for part in parts]
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_is_transformers_step_by_step(family: str) -> None:
    ids = tokens(2, 3 * WINDOW + 2)
    for dtype, tolerance, prompt, chunk in (
        (torch.float32, 5e-5, 1, None),
        (torch.float64, 1e-9, 1, None),
        (torch.float64, 1e-9, 2 * WINDOW + 3, None),
        (torch.float64, 1e-9, 2 * WINDOW + 3, WINDOW - 1),
    ):
        m = animal(family, dtype)
        want = own(m, ids, prompt)
        with attention.Full().on(m) as cache:
            got = follow(m, cache, list(ids[:, :prompt]), ids[:, prompt:], chunk)
        assert want.abs().max() > 1
        assert (got - want).abs().max() <= tolerance


@pytest.mark.parametrize("chunk", [None, 4])
@pairs
def test_a_row_of_a_ragged_batch_is_that_row_alone(
    family: str, backend: attention.Backend, chunk: int | None
) -> None:
    m, answers = animal(family), tokens(3, 10, seed=7)
    # Their chunks of four columns end in the same places alone.
    texts = [tokens(n, seed=n) for n in (4, WINDOW + 3, 2 * WINDOW + 2)]
    with backend.on(m) as cache:
        got = follow(m, cache, texts, answers, chunk)
        for r, text in enumerate(texts):
            alone = cache.new()
            want = follow(m, alone, [text], answers[r : r + 1], chunk)[0]
            assert (got[r] - want).abs().max() < 1e-9
            for layer in range(2):
                assert torch.equal(cache.kept_positions(layer)[r], alone.kept_positions(layer)[0])


@pytest.mark.parametrize("backend", KINDS[1:], ids=str)
@pytest.mark.parametrize("family", ["gemma3", "qwen2_sliding"])
def test_sliding_layers_are_exempt_and_reported_apart(
    family: str, backend: attention.Backend
) -> None:
    m, layers = animal(family), sliding_layers(family)
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(30), tokens(2, seed=1)])
        decode(m, cache, tokens(2, 2, seed=2))
        rows, stats = cache.row_stats(), cache.stats()
        for i in layers:
            assert [p.tolist()[0] for p in cache.read_positions(i)] == [
                [*range(32 - WINDOW, 32)],
                [*range(4)],
            ]
        assert stats.read_max == rows.read_max.max() <= backend.budget < 32
        assert stats.kept == rows.kept_max.max()
        assert rows.bytes.sum() == stats.bytes
        read = sum(p.numel() for i in range(len(cache.layers)) for p in cache.read_positions(i))
        if backend.name in ("sink", "h2o", "snapkv"):
            assert rows.keys_read.sum() == read


def test_a_model_that_slides_throughout_leaves_a_method_nothing_and_says_so() -> None:
    m, ids = animal(WITHOUT_ROOM), tokens(1, 30)
    want = own(m, ids, 20)
    with ExitStack() as stack:
        with pytest.warns(UserWarning, match="h2o has no layer to act on"):
            cache = stack.enter_context(attention.H2O(budget=5).on(m))
        got = follow(m, cache, [ids[0, :20]], ids[:, 20:])
        rows, stats = cache.row_stats(), cache.stats()
    assert (got - want).abs().max() < 1e-9
    assert (stats.kept, stats.read_max, rows.dense_read_mean) == (0, None, None)
    assert rows.read_max.tolist() == [0]
    assert rows.keys_read.tolist() == [2 * 2 * WINDOW]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for harmless in (attention.Full().on(m), attention.H2O(budget=5).on(animal("gemma3"))):
            with harmless:
                pass


# Turning keys


def roped(m: Any, x: Tensor, positions: Tensor) -> Tensor:
    """The model's own rotary embedding of full-attention layers, by its own code."""
    import importlib

    table = m.model.rotary_emb
    kind = ("full_attention",) if m.config.model_type == "gemma3_text" else ()
    cos, sin = table(x, positions, *kind)
    code = importlib.import_module(type(m).__module__)
    return code.apply_rotary_pos_emb(x, x, cos, sin)[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turned_key_is_the_key_the_model_would_have_roped_there(family: str) -> None:
    m = animal(family)
    rope = Rope(m.model.rotary_emb)
    rope.require_fixed("sink")
    x = torch.randn(2, 3, 5, m.model.layers[0].self_attn.head_dim, dtype=torch.float64)
    start, end = torch.randint(0, 300, (2, 5)), torch.randint(0, 300, (2, 5))
    got = rotate(roped(m, x, start), rope.turn(start, end, x))
    want = roped(m, x, end)
    assert (want - roped(m, x, start)).abs().max() > 0.1
    assert (got - want).abs().max() < 1e-12


# Refusals


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("T5Config", "t5.*encoder-decoder"),
        ("Gemma3Config", "gemma3.*vision_config"),
        ("Qwen2AudioConfig", "qwen2_audio.*audio_config"),
        ("DeepseekV3Config", "deepseek_v3.*one latent vector"),
        ("Llama4TextConfig", "chunked_attention"),
        ("Gemma2Config", "attn_logit_softcapping = 50"),
    ],
)
def test_other_kinds_of_models_are_refused_with_the_reason(kind: str, says: str) -> None:
    with pytest.raises(attention.InvalidValue, match=says):
        check_family(getattr(transformers, kind)())


# Cropping, and a prompt in two turns


@pytest.mark.parametrize("family", ["gemma3", "qwen2_sliding"])
@torch.no_grad()
def test_cropping_is_exact_until_a_window_drops_a_token_and_refused_after(family: str) -> None:
    m, ids = animal(family), tokens(1, 12)
    for backend in (attention.Full(), attention.Quest(budget=6, page=3, dense_layers=0)):
        with backend.on(m) as cache:
            want = follow(m, cache.new(), [ids[0, :4]], ids[:, 4:])
            follow(m, cache, [ids[0, :4]], tokens(1, WINDOW - 4, seed=1))
            assert cache.is_croppable
            cache.crop(4 - WINDOW)
            assert (decode(m, cache, ids[:, 4:]) - want[:, 1:]).abs().max() < 1e-9
            assert not cache.is_croppable
            copied = cache.clone()
            with pytest.raises(attention.InvalidValue, match=f"at most {WINDOW} tokens.*sliding"):
                cache.crop(-7)
            assert torch.equal(step(m, cache, ids[:, 0]), step(m, copied, ids[:, 0]))

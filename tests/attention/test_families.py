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
from zoo import FAMILIES, HALF, SLIDING, WINDOW, WITHOUT_ROOM, animal, build, config, sliding_layers

import attention
from attention.core.ropes import Rope, rotate
from attention.families import check_family
from attention.testing.driving import decode, follow, left_padded, prefill, step
from attention.testing.driving import text as tokens

pytestmark = pytest.mark.filterwarnings("ignore:every layer of this mistral")
# One of every way to hold a state, beside the model's own sliding layers.
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


@pytest.mark.parametrize(
    ("family", "more", "windows"),
    [
        ("qwen3", HALF, [None, WINDOW]),
        ("qwen2_moe", HALF | {"max_window_layers": 2}, [WINDOW, None]),
        ("qwen3_moe", HALF, [WINDOW, WINDOW]),
        ("phi3", {"sliding_window": WINDOW}, [WINDOW, WINDOW]),
    ],
)
def test_other_families_slide_where_their_config_says(
    family: str, more: dict[str, Any], windows: list[int | None]
) -> None:
    m, ids = build(config(family, **more)), tokens(2, 2 * WINDOW + 4)
    want = own(m, ids, WINDOW + 1)
    with attention.Full().on(m) as cache:
        got = follow(m, cache, list(ids[:, : WINDOW + 1]), ids[:, WINDOW + 1 :])
        assert [x.window for x in cache.stats(per_layer=True).layers] == windows
    assert (got - want).abs().max() < 1e-9


@pytest.mark.parametrize("family", SLIDING)
def test_prompts_around_the_window(family: str) -> None:
    m, ids = animal(family), tokens(1, 2 * WINDOW + 2)
    lengths = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW)
    want = own(m, ids, 1)
    with attention.Full().on(m) as cache:
        for length in lengths:
            for chunk in (None, 2, WINDOW, WINDOW + 1):
                given = ids[:, length : length + 2]
                got = follow(m, cache.new(), [ids[0, :length]], given, chunk)
                assert (got - want[:, length - 1 : length + 2]).abs().max() <= 1e-9


@torch.no_grad()
def test_long_prompts_are_masked_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More columns than one block of either prefill holds, alone and in ragged rows."""
    monkeypatch.setattr("attention.core.kernels.SLIDING_COLUMNS", WINDOW)
    monkeypatch.setattr("attention.core.kernels.MASK_ELEMENTS", 300)
    monkeypatch.setattr("attention.core.kernels.BLOCK_ELEMENTS", 900)
    for family in SLIDING:
        m, texts = animal(family), [tokens(40), tokens(23, seed=1)]
        want = torch.cat([own(m, text[None], len(text))[:, 0] for text in texts])
        with attention.Full().on(m) as cache:
            both = prefill(m, cache, texts)[:, -1]
            alone = torch.cat([prefill(m, cache.new(), [text])[:, -1] for text in texts])
        assert (both - want).abs().max() < 1e-9
        assert (alone - want).abs().max() < 1e-9


@pytest.mark.parametrize("chunk", [None, 4])
@pairs
def test_a_row_of_a_ragged_batch_is_that_row_alone(
    family: str, backend: attention.Backend, chunk: int | None
) -> None:
    m, given = animal(family), tokens(3, 10, seed=7)
    # Their chunks of four columns end in the same places alone.
    texts = [tokens(n, seed=n) for n in (4, WINDOW + 3, 2 * WINDOW + 2)]
    with backend.on(m) as cache:
        got = follow(m, cache, texts, given, chunk)
        for r, text in enumerate(texts):
            alone = cache.new()
            want = follow(m, alone, [text], given[r : r + 1], chunk)[0]
            assert (got[r] - want).abs().max() < 1e-9
            for layer in range(2):
                assert torch.equal(cache.kept_positions(layer)[r], alone.kept_positions(layer)[0])


@pairs
def test_rows_are_reordered_and_replaced_in_sliding_layers_too(
    family: str, backend: attention.Backend
) -> None:
    m, given = animal(family), tokens(3, 16, seed=3)
    texts = [tokens(n, seed=n) for n in (3, WINDOW + 2, 2 * WINDOW + 3)]
    with backend.on(m) as cache:
        whole = cache.new()
        want = follow(m, whole, texts, given)
        follow(m, cache, texts, given[:, :6])
        cache.reorder_cache(torch.tensor([2, 0, 2]))
        got = decode(m, cache, given[[2, 0, 2], 6:10])
        assert (got - want[[2, 0, 2], 7:11]).abs().max() < 1e-9
        fresh, newcomers = cache.new(), [tokens(2, seed=11), tokens(2 * WINDOW + 5, seed=12)]
        prefill(m, fresh, newcomers)
        cache.replace_rows([1, 2], fresh)
        assert cache.seen.tolist() == [2 * WINDOW + 3 + 10, 2, 2 * WINDOW + 5]
        got = decode(m, cache, given[[2, 0, 1], 10:])
        assert (got[0] - want[2, 11:]).abs().max() < 1e-9
        for place, r in ((1, 0), (2, 1)):
            alone = follow(m, cache.new(), [newcomers[r]], given[r : r + 1, 10:])[0, 1:]
            assert (got[place] - alone).abs().max() < 1e-9


@pytest.mark.parametrize("backend", KINDS[1:], ids=str)
@pytest.mark.parametrize("family", ["gemma3", "qwen2_sliding"])
def test_sliding_layers_are_exempt_and_reported_apart(
    family: str, backend: attention.Backend
) -> None:
    m, layers = animal(family), sliding_layers(family)
    with backend.on(m) as cache:
        prefill(m, cache, [tokens(30), tokens(2, seed=1)])
        assert cache.row_stats().sliding_read_mean.tolist() == [0, 0]
        decode(m, cache, tokens(2, 2, seed=2))
        rows, stats = cache.row_stats(), cache.stats(per_layer=True)
        assert stats.sliding == tuple(layers)
        windows = [WINDOW if i in layers else None for i in range(len(cache.layers))]
        assert [x.window for x in stats.layers] == windows
        assert not any(x.dense for x in stats.layers)
        for i in layers:
            assert (stats.layers[i].kept, stats.layers[i].read_max) == (WINDOW, WINDOW)
            assert [p.tolist()[0] for p in cache.read_positions(i)] == [
                [*range(32 - WINDOW, 32)],
                [*range(4)],
            ]
        assert rows.sliding_read_mean.tolist() == [WINDOW, 4]
        (sparse,) = (x for x in stats.layers if x.window is None)
        assert stats.read_max == rows.read_max.max() == sparse.read_max
        assert stats.kept == rows.kept_max.max() == sparse.kept
        assert stats.read_max <= backend.budget < 32
        assert rows.bytes.sum() == stats.bytes == sum(x.bytes for x in stats.layers)
        read = sum(p.numel() for i in range(len(windows)) for p in cache.read_positions(i))
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
    assert stats.sliding == (0, 1)
    assert (stats.kept, stats.read_max, rows.dense_read_mean) == (0, None, None)
    assert rows.read_max.tolist() == [0]
    assert rows.sliding_read_mean.tolist() == [WINDOW]
    assert rows.keys_read.tolist() == [2 * 2 * WINDOW]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for harmless in (attention.Full().on(m), attention.H2O(budget=5).on(animal("gemma3"))):
            with harmless:
                pass


def test_dense_layers_count_sliding_ones_and_must_leave_one() -> None:
    m = build(config("gemma3", num_hidden_layers=4), torch.float32)  # layers 1 and 3 are full
    with attention.Quest(budget=12, page=3, dense_layers=2).on(m) as cache:
        follow(m, cache, [tokens(20)], tokens(1, 2))
        layers = cache.stats(per_layer=True).layers
        assert [x.dense for x in layers] == [False, True, False, False]
        assert [x.read_max for x in layers] == [WINDOW, 22, WINDOW, 10]
        assert cache.row_stats().dense_read_mean.tolist() == [22]
    for family, most in (("gemma3", 1), ("qwen2_sliding", 0), ("llama", 1)):
        with attention.Quest(budget=12, page=3, dense_layers=most).on(animal(family)):
            pass
        with (
            pytest.raises(attention.InvalidValue, match=f"dense_layers.*at most {most}"),
            attention.Quest(budget=12, page=3, dense_layers=most + 1).on(animal(family)),
        ):
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


def test_phi3_longrope_is_refused_where_keys_are_turned() -> None:
    long = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    more = {"rope_parameters": long, "original_max_position_embeddings": 32}
    m = build(config("phi3", **more), torch.float32)
    for backend in (
        attention.Sink(budget=8),
        attention.InfLLM(budget=16),
        attention.H2O(budget=8, positions="rolled"),
    ):
        with pytest.raises(attention.InvalidValue, match="longrope"), backend.on(m):
            pass
    with attention.H2O(budget=8).on(m) as cache, torch.no_grad():
        ids = tokens(1, 30)
        m.generate(
            input_ids=ids[:, :10],
            attention_mask=torch.ones(1, 10),
            past_key_values=cache,
            max_new_tokens=8,
            do_sample=False,
        )
        # Across the length where its frequencies change, generate() itself drops the cache.
        with pytest.raises(attention.InvalidValue, match="original_max_position_embeddings"):
            m.generate(
                input_ids=ids,
                attention_mask=torch.ones(1, 30),
                past_key_values=cache.new(),
                max_new_tokens=8,
                do_sample=False,
            )


# Refusals


def refused(m: Any, says: str) -> None:
    with pytest.raises(attention.InvalidValue, match=says), attention.Full().on(m):
        pass


def test_what_cannot_work_is_refused_by_name() -> None:
    m = build(config("gemma3"), torch.float32)
    for change, says in (
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ):
        before = {name: getattr(m.config, name, None) for name in change}
        for name, value in change.items():
            object.__setattr__(m.config, name, value)
        refused(m, says)
        for name, value in before.items():
            object.__setattr__(m.config, name, value)
    with attention.Full().on(m):
        pass


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


def test_a_model_on_several_devices_is_refused() -> None:
    m = build(config("llama"), torch.float32)
    m.lm_head.to("meta")
    refused(m, "one device")
    refused(m.to("meta"), "one device")


@torch.no_grad()
def test_a_window_that_changes_inside_the_block_is_refused() -> None:
    m = build(config("mistral"), torch.float32)
    with attention.Full().on(m) as cache:
        m.config.sliding_window = 5
        with pytest.raises(attention.InvalidValue, match="sliding_window = 5: expected None"):
            m(input_ids=tokens(1, 4), past_key_values=cache)
        m.config.sliding_window = None
        m(input_ids=tokens(1, 4), past_key_values=cache.new())
        with pytest.raises(attention.InvalidValue, match="softcap"):
            m(input_ids=tokens(1, 4), past_key_values=cache.new(), softcap=30.0)


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
            held = cache.clone()
            with pytest.raises(attention.InvalidValue, match=f"at most {WINDOW} tokens.*sliding"):
                cache.crop(-7)
            assert torch.equal(step(m, cache, ids[:, 0]), step(m, held, ids[:, 0]))


@torch.no_grad()
def test_guessed_tokens_are_taken_back_where_that_is_exact() -> None:
    """Assisted decoding crops the tokens that were guessed wrong."""
    m, helper, ids = animal("llama"), animal("mistral"), tokens(1, 10)
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 15}
    # None that is ever chosen: older versions cannot look for no end at all among drafts.
    call["eos_token_id"] = m.config.vocab_size
    want = m.generate(**call, do_sample=False)
    guesses: tuple[dict[str, Any], ...] = (
        {"prompt_lookup_num_tokens": 3},
        {"assistant_model": helper},
    )
    for guess in guesses:
        for backend in (attention.Full(), attention.Quest(budget=32, page=4, dense_layers=0)):
            with backend.on(m) as cache:
                got = m.generate(**call, **guess, do_sample=False, past_key_values=cache)
            assert torch.equal(got, want)
    refused = pytest.raises(attention.InvalidValue, match="crop")
    with attention.Full().on(animal("gemma3")) as cache, refused:
        animal("gemma3").generate(**call, **guesses[0], do_sample=False, past_key_values=cache)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_conversation_goes_on_in_the_same_cache(family: str) -> None:
    """generate() fed with the whole text again reads only what is new."""
    m = animal(family)
    ids, mask = left_padded([tokens(9), tokens(4, seed=1)])
    calls, wanted, theirs = [], [], DynamicCache(config=m.config)
    for turn in range(2):
        calls.append({"input_ids": ids, "attention_mask": mask, "max_new_tokens": 5})
        wanted.append(m.generate(**calls[-1], past_key_values=theirs, do_sample=False))
        ids = torch.cat((wanted[-1], tokens(2, 3, seed=turn)), dim=1)
        mask = torch.cat((mask, torch.ones(2, 8, dtype=torch.long)), dim=1)
    with attention.Full().on(m) as cache:
        for call, want in zip(calls, wanted, strict=True):
            got = m.generate(**call, past_key_values=cache, do_sample=False)
            assert torch.equal(got, want)
    assert cache.seen.tolist() == [9 + 5 + 3 + 4, 4 + 5 + 3 + 4]


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss"])
def test_angles_from_a_table_are_those_of_the_model(family: str) -> None:
    rope = Rope(animal(family).model.rotary_emb)
    like = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    for below in (9, 1500):  # the table grows
        start, end = (tokens(2, 5, seed=i) * (below - 1) // 53 for i in (1, 2))
        start[0, 0], end[1, 4] = 0, below - 1
        pairs = ((start, end), (range(5), end), (start, range(5)))
        for one, other in pairs:
            found = rope.turn(one, other, like, below)
            assert all(map(torch.equal, found, rope.turn(one, other, like)))

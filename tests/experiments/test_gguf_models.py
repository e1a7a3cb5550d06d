"""GGUF files become the models they were made of: weights, scores, texts and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import (
    EPSILON,
    HEADS,
    KINDS,
    TEMPLATE,
    byte_level,
    made,
    numbers,
    pieces,
    tensors,
    write,
)
from safetensors.torch import load_file

from experiments.cli import main
from experiments.grid import models

gguf = pytest.importorskip("gguf", reason="needs the package gguf")

TEXTS = (
    "hello world 12 3",
    "  two  blanks\n\n and\ttabs ",
    "<|im_start|>hello<|im_end|>",
    "é 汉字 \U0001f600",
    "",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))


def loaded(path: Path, dtype: str = "float32") -> models.LoadedModel:
    return models.load(models.find(str(path)), dtype, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_scores_as_the_one_the_file_was_made_of(kind, tmp_path):
    model = write(tmp_path / "a.gguf", kind)
    found = loaded(tmp_path / "a.gguf").model
    assert type(found) is type(model)
    ids = torch.randint(0, model.config.vocab_size, (2, 40), generator=torch.manual_seed(1))
    with torch.no_grad():
        wanted, scores = model(ids).logits, found(ids).logits
    assert wanted.std() > 0.3
    # Gemma's norms lose a last bit where files add 1 to them.
    torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-4 if kind == "gemma3" else 0)
    assert found.config.rms_norm_eps == EPSILON


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_weights_are_what_their_bytes_stand_for(storage, tmp_path):
    write(tmp_path / "a.gguf", "llama", storage=storage)
    folder = Path(models.find(str(tmp_path / "a.gguf")).location)
    weights = load_file(folder / "model.safetensors")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    stored = {one.name: one for one in reader.tensors}
    kept = {"F16": torch.float16, "BF16": torch.bfloat16}.get(storage, torch.float32)
    for ours, theirs in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
    ):
        one = stored[ours]
        wanted = np.array(numbers(one.data.tobytes(), one.tensor_type.name), np.float32)
        wanted = wanted.reshape(one.shape[::-1])
        if "attn_q" in ours:  # pairs of rows, sorted to halves
            heads = wanted.reshape(HEADS, -1, 2, wanted.shape[1])
            wanted = np.concatenate([heads[:, :, 0], heads[:, :, 1]], 1).reshape(wanted.shape)
        assert weights[theirs].dtype == (torch.float32 if "norm" in ours else kept)
        np.testing.assert_array_equal(weights[theirs].float().numpy(), wanted)


def test_types_that_only_others_write_are_dequantised_as_the_package_does(tmp_path, monkeypatch):
    """K-quants and the like, of random bytes with scales that are finite."""
    from experiments.grid.gguf import tensors as reading
    from experiments.grid.gguf.architectures import Part
    from experiments.grid.gguf.header import TensorEntry, Unconvertible

    monkeypatch.setattr(reading, "PIECE", 1000)  # several pieces
    generator = np.random.default_rng(0)
    tried = 0
    for kind in gguf.GGMLQuantizationType:
        entry = TensorEntry("x", (9, 512), int(kind), 0)
        try:
            storage = reading.storage(entry)
        except Unconvertible:
            continue
        width = 512 // storage.block * storage.width
        raw = generator.integers(0, 64, (9, width), np.uint8)
        (tmp_path / "raw").write_bytes(raw.tobytes())
        source = reading.Source(entry, Part("y", (9, 512)), storage)
        with (tmp_path / "raw").open("rb") as file:
            found = b"".join(source.pieces(file))
        if storage.made == "F32":
            wanted = gguf.dequantize(raw, kind).astype(np.float32)
            assert found == wanted.tobytes(), kind
            tried += 1
        else:
            assert found == raw.tobytes()
        assert len(found) == source.nbytes
    assert tried >= 15


@pytest.mark.parametrize("biased", [False, True])
def test_heads_with_biases_and_shared_embeddings(biased, tmp_path):
    model = made("llama", attention_bias=biased, mlp_bias=biased, tie_word_embeddings=not biased)
    write(tmp_path / "a.gguf", "llama", model)
    found = loaded(tmp_path / "a.gguf").model
    assert found.config.tie_word_embeddings is not biased
    wanted = model.state_dict()
    assert found.state_dict().keys() == wanted.keys()
    for name, x in found.state_dict().items():
        assert torch.equal(x, wanted[name]), name


def _turned(**rope: Any) -> Any:
    return made("llama", rope_parameters={"rope_theta": 5000.0, **rope})


def test_positions_that_are_stretched(tmp_path):
    linear = _turned(rope_type="linear", factor=4.0)
    given = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    _same_turns(tmp_path / "linear.gguf", linear, given)
    yarn = _turned(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
    given = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    _same_turns(tmp_path / "yarn.gguf", yarn, given)


def test_llama_3_says_only_what_each_frequency_is_divided_by(tmp_path):
    stretched = _turned(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    plain = _turned(rope_type="default")
    factors = plain.model.rotary_emb.inv_freq / stretched.model.rotary_emb.inv_freq
    assert len(set(factors.tolist())) > 1
    assert factors.max() == 8

    def add(held: dict[str, Any]) -> None:
        held["rope_freqs.weight"] = factors.numpy()

    _same_turns(tmp_path / "llama3.gguf", stretched, {}, add)


def _same_turns(path: Path, model: Any, values: dict[str, Any], change: Any = None) -> None:
    write(path, "llama", model, values=values, change=change)
    found = loaded(path).model.model.rotary_emb
    wanted = model.model.rotary_emb
    torch.testing.assert_close(found.inv_freq, wanted.inv_freq, rtol=1e-6, atol=0)
    assert found.attention_scaling == pytest.approx(wanted.attention_scaling, rel=1e-9)


def test_phi_3_takes_other_factors_beyond_its_first_length(tmp_path):
    model = write(tmp_path / "a.gguf", "phi3")
    found = loaded(tmp_path / "a.gguf").model
    for length in (8, 32):
        ids = torch.arange(length)[None]
        with torch.no_grad():
            assert torch.equal(found(ids).logits, model(ids).logits)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_texts_come_back_and_ends_are_the_files_own(kind, tmp_path):
    write(tmp_path / "a.gguf", kind)
    found = loaded(tmp_path / "a.gguf")
    tokenizer, config = found.tokenizer, found.model.generation_config
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert b"".join(found.token_bytes[i] for i in ids).decode() == text
    tokens = tokenizer.convert_ids_to_tokens
    if kind == "llama":
        assert tokens(tokenizer("hello 12", add_special_tokens=False)["input_ids"]) == [
            *("hello", "Ġ", "1", "2")  # Qwen2's cut leaves no merge of two digits
        ]
        assert tokens(config.eos_token_id) == ["<|im_end|>", "<|endoftext|>"]
        chat = [{"role": "user", "content": "hello"}]
        said = tokenizer.apply_chat_template(chat, tokenize=False)
        assert (said, tokenizer.chat_template) == ("<|im_start|>hello<|im_end|>", TEMPLATE)
    else:
        assert tokens(tokenizer(" hello")["input_ids"]) == ["<bos>", "▁hello"]
        assert tokens(config.eos_token_id) == ["<eos>", "<end_of_turn>"]


def test_tokens_are_those_of_transformers_own_conversion(tmp_path):
    """But for what it does not know: cuts of single digits, composed characters."""
    from transformers import AutoTokenizer

    for kind in ("llama", "gemma3"):
        write(tmp_path / f"{kind}.gguf", kind)
        theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=f"{kind}.gguf")
        ours = models.find_tokenizer(str(tmp_path / f"{kind}.gguf")).tokenizer
        for text in TEXTS:
            assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert not (tmp_path / "cache").exists()  # a tokenizer alone converts nothing


@pytest.mark.parametrize(
    ("kind", "prefix", "tokens"),
    [
        ("llama", False, ["h", "el"]),  # the pair with the better score
        ("llama", True, ["▁", "h", "el"]),
        ("gemma3", False, ["he", "l"]),  # the pair whose token stands first
    ],
)
def test_pieces_are_merged_in_their_order(kind, prefix, tokens, tmp_path):
    words = {**pieces(), "merges": None, "add_space_prefix": prefix}
    write(tmp_path / "a.gguf", kind, words=words)
    ours = models.find_tokenizer(str(tmp_path / "a.gguf")).tokenizer
    ids = ours("hel", add_special_tokens=False)["input_ids"]
    assert ours.convert_ids_to_tokens(ids) == tokens
    assert ours.decode(ids) == "hel"
    assert ours("hel")["input_ids"] == [ours.bos_token_id, *ids]


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("smollm", ["ĠĠ", "1", "2"]),  # digits first, so the blanks before them stay together
        ("gpt-2", ["Ġ", "Ġ", "12"]),
    ],
)
def test_how_a_text_is_cut_decides_its_tokens(pre, tokens, tmp_path):
    words = byte_level()
    words["tokens"] = [*words["tokens"][:-4], "ĠĠ", *words["tokens"][-4:]]
    words["token_type"] = [1, *words["token_type"]]
    words["merges"] = [*words["merges"], "Ġ Ġ"]
    for name in ("bos_token_id", "eos_token_id", "padding_token_id"):
        words[name] += 1
    write(tmp_path / "a.gguf", words={**words, "pre": pre})
    ours = models.find_tokenizer(str(tmp_path / "a.gguf")).tokenizer
    assert ours.convert_ids_to_tokens(ours("  12")["input_ids"]) == tokens


FIXED = ["--model", "tiny.gguf", "--max-new-tokens", "8", "--threads", "1", "--json"]


def test_commands_take_a_gguf_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(Path("tiny.gguf"), "llama", storage="Q8_0")
    assert main(["run", *FIXED, "--prompt", "hello", "--backend", "h2o", "--budget", "16"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["backend"]["name"] == "h2o"
    assert 1 <= document["samples"][0]["tokens"] <= 8
    Path("essay.txt").write_text("hello world " * 50)
    curve = ["curve", "essay.txt", "--tokenizer", "tiny.gguf", "--detector", "cycle"]
    assert main(curve) == 0


@pytest.mark.slow
def test_a_sweep_knows_a_gguf_file_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("tiny.gguf"), "llama", storage="Q8_0")
    grid = ["--dataset", "easy", "--limit", "1", "--backend", "full,sink", "--budget", "32"]
    sweep = ["sweep", *FIXED, *grid, "--out", "store", "--no-figures", "--no-page"]
    assert main([*sweep, "--dry-run"]) == 0
    assert not Path("store").exists()
    assert main(sweep) == 0
    (manifest,) = Path("store", "sweeps").glob("*.json")
    assert models.find("tiny.gguf").digest in manifest.read_text()


def test_names_of_tensors_are_all_told_apart():
    """The oracle itself: every parameter of a model is in its file once."""
    for kind in KINDS:
        model = made(kind)
        held = sum(x.size for name, x in tensors(kind, model).items() if "rope" not in name)
        assert held == sum(x.numel() for x in model.parameters())

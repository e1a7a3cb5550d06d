"""Token bytes joined together are the decoded text, for each family of tokenizers."""

from __future__ import annotations

import random

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from attention.errors import InvalidValue
from lil import token_bytes

TEXT = "Anna's café — 3 apples, 日本語, 🙂🙃 and\n\n\ttabs; naïve façade. " * 3


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2 style, as Qwen and Llama 3 have it, with added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("\n\n"), AddedToken(" two words")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def byte_fallback() -> PreTrainedTokenizerFast:
    """SentencePiece style, as Llama 2 and Mistral have it: U+2581 for space, <0xNN> for bytes."""
    words = ["▁", "▁Anna", "a", "n", "é", "▁apples", "▁3", ","]
    vocab = {"<unk>": 0, "</s>": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    vocab |= {word: len(vocab) + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_joined_bytes_are_the_decoded_text(build):
    tokenizer = build()
    table = token_bytes(tokenizer)
    assert len(table) == len(tokenizer)
    valid = [
        i for i, piece in enumerate(table) if piece.decode("utf-8", "ignore").encode() == piece
    ]
    rng = random.Random(0)
    for _ in range(50):
        ids = rng.choices(valid, k=40)
        joined = b"".join(table[i] for i in ids).decode()
        # SentencePiece drops one space at the very beginning of what it decodes.
        text = decoded(tokenizer, ids)
        strip = build is byte_fallback
        assert text == (joined.removeprefix(" ") if strip else joined)


def test_added_tokens_are_their_text():
    tokenizer = byte_level()
    table = token_bytes(tokenizer)
    for text in ("<|end|>", "<think>", "\n\n", " two words"):
        assert table[tokenizer.convert_tokens_to_ids(text)] == text.encode()


def test_ids_without_a_token_have_no_bytes():
    vocab = {"a": 0, "b": 3, "<unk>": 4}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert token_bytes(fast) == [b"a", b"", b"", b"b", b"<unk>"]


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.BPEDecoder()])
def test_decoders_that_put_text_between_tokens_are_refused(decoder):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(InvalidValue, match="tokenizer decoder"):
        token_bytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_a_tokenizer_whose_decode_differs_is_refused():
    class Upper(PreTrainedTokenizerFast):
        def decode(self, *args, **kwargs):
            return super().decode(*args, **kwargs).upper()

    with pytest.raises(InvalidValue, match="Upper"):
        token_bytes(Upper(tokenizer_object=byte_level().backend_tokenizer))


def test_a_tokenizer_without_a_backend_is_refused():
    with pytest.raises(InvalidValue, match="fast tokenizer"):
        token_bytes(object())

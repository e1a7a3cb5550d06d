"""A model, problems and names that are meant badly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Clears the screen, sets a title, asks the terminal, is no text, turns the line.
BAD = "\x1b[2J\x1b]0;t\x07\x1bP+q544e\x1b\\\x9b31m\u202e\x00\r"
#: The same as a file's name may have it, with markup of consoles and pages.
NAME = "q\x1b[2J\u202e[red]<img src=x onerror=alert(1)>"
#: Ordinary words, and texts that would steer a terminal or end a script.
WORDS = (
    *("so", "is", "the", "one", "two", "7", "+", ".", "\n", "<think>", "</think>", "</script>"),
    *("\x1b[2J", "\x1b]0;title\x07", "\x00", "\x9b31m", "\u202e", "\r", "\x7f"),
)


class Hostile(NamedTuple):
    """A folder, and what is in it by names relative to it."""

    folder: Path
    model: str
    problems: str
    store: str


def save_word_model(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """Write a tiny Llama that says these words; text is split at blanks."""
    vocabulary = {word: i for i, word in enumerate((*words, "<unk>", "<eos>"))}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    eos = vocabulary["<eos>"]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=eos,
        pad_token_id=eos,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

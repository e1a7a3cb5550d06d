"""A tiny random model in a folder, whose words are of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: Ordinary words, and texts that would steer a terminal or end a script.
WORDS = (
    *("so", "wait", "is", "the", "sum", "of", "one", "two", "7", "12", "+", "=", ".", "\n"),
    *("<think>", "</think>", "\\boxed{7}", "\t", "é", "汉", "\U0001f600", "</script>"),
    *(
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x1bP+q544e\x1b\\",
        "\x00",
        "\x9b31m",
        "\u202e",
        "\r",
        "\x7f",
    ),
)


def save_word_model(folder: Path, words: Sequence[str] = WORDS, seed: int = 0) -> Path:
    """Write a Llama of three layers that says these words, as `from_pretrained` reads it.

    Its last words are `<unk>` and `<eos>`; text is split at blanks.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate((*words, "<unk>", "<eos>"))}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    eos = vocabulary["<eos>"]
    torch.manual_seed(seed)
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

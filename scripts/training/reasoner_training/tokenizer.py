"""The reasoner's word-level tokenizer: whole words with their leading space, numbers, signs.

Each token is a piece of text and the pieces of a text joined are the text, so a token's bytes are
its own UTF-8. Built from the language alone (`words.py`, `chain_words.py`); no corpus is read.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from experiments.reasoner import words

from . import chain_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_PIECE = r"<[a-z]+>|</think>| ?\\boxed\{|\n\n|\n| ?[A-Za-z]+| ?[0-9]{1,2}|[^\n]"


def pieces(text: str) -> list[str]:
    """Split text the way the tokenizer does; joined, the pieces are the text."""
    return re.findall(_PIECE, text)


@cache
def vocabulary() -> tuple[str, ...]:
    """All pieces of the first three levels, special tokens first, then in alphabetical order."""
    chain = chain_words
    special = (chain.PAD, chain.EOS, chain.UNK, chain.THINK, chain.END_THINK, chain.BOXED)
    vocabulary: set[str] = {f" {chain_words.BOXED}", "\n", "\n\n", "}", ".", ",", "?", ":", "!"}
    for number in range(chain_words.MAX_NUMBER + 1):
        vocabulary.update((f"{number}", f" {number}"))
    for theme in words.THEMES:
        subjects = [theme.subject(name) for name in theme.names]
        subjects += [theme.opening(name) for name in theme.names]
        for text in (*subjects, theme.verb, theme.infinitive, *theme.units, *theme.names):
            vocabulary.update(pieces(f" {text}"))
    blank = dict.fromkeys(("X", "x", "y", "z", "n", "u", "has", "have", "v", "p"), "")
    forms = [form for kind in words.FACTS.values() for form in kind]
    forms += [pair for verdict in chain_words.VERDICTS for pair in verdict]
    for group in (
        words.QUESTIONS, words.INTROS, chain.ASK, chain.OPEN, chain.BACK, chain.GIVEN, chain.TAKE,
        chain.MAKES, chain.WAIT, chain.CHECK, chain.RECHECK, chain.UNSEEN,
        chain.RESTART, chain.GIVE_UP, (chain.NOT_KNOWN, chain.CUE),
    ):  # fmt: skip
        forms += group
    phrases = "plus minus twice is was not known guess First After The answer"
    for form in forms:
        vocabulary.update(pieces(form.format(**blank)))
    vocabulary.update(f" {word}" for word in phrases.split())
    vocabulary.update(("First", "After", "The"))
    vocabulary.discard(" ")
    return special + tuple(sorted(vocabulary - set(special)))


@cache
def richer_vocabulary() -> tuple[str, ...]:
    """The same and then the words of facts stated twice: a checkpoint can go on with more."""
    first, later = vocabulary(), {" Again"}
    blank = dict.fromkeys(("X", "y", "z", "n", "u", "has"), "")
    for form in (form for kind in words.MORE_FACTS.values() for form in kind):
        later.update(pieces(form.format(**blank)))
    return first + tuple(sorted(later - {" ", *first}))


def build_tokenizer(known: tuple[str, ...] | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers loads it; padding on the left.

    Args:
        known: its pieces, by id; the shipped model's by default.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {piece: i for i, piece in enumerate(known or vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=chain_words.UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=chain_words.PAD,
        eos_token=chain_words.EOS,
        unk_token=chain_words.UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )

"""NoWait: words of reflection are out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from attention.core import devices
from attention.errors import InvalidValue
from lil.penalties._history import StatefulPenalty, token_ids

#: The paper's list.
WORDS = tuple(
    "wait alternatively hmm but however alternative another check double-check oh maybe verify "
    "other again now ah any".split()
)


@dataclass(frozen=True, kw_only=True)
class NoWaitPenalty(StatefulPenalty):
    """NoWait: tokens that begin a word of reflection, such as "Wait", are out (arXiv 2506.08343).

    Their scores become -inf, in the thinking and behind it. Which tokens these are the tokenizer
    says: `lil.decode` and engines ask it, and for `generate()` one calls `with_tokens`. Where we
    differ: the paper takes tokens that contain a word and removes by hand what is another one
    ("Ohio"); here a token's text has to begin with it, whatever its case, behind spaces and
    punctuation. So "know" stays, and "button" goes. A word in smaller pieces can still be written.

    Args:
        words: beginnings of tokens that are out.
        tokens: ids that are out, too.

    Raises:
        InvalidValue: a word that is no text or has neither letters nor digits; or a token is to be
            chosen, and the tokens that begin with the words are not known.
    """

    words: Sequence[str] = WORDS
    tokens: Sequence[int] = ()

    name: ClassVar[str] = "nowait"
    reads_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a list of words"
        if isinstance(self.words, str) or not isinstance(self.words, Iterable):
            raise InvalidValue("words", self.words, allowed)
        words = tuple(self.words)
        for word in words:
            if not isinstance(word, str) or not any(map(str.isalnum, word)):
                raise InvalidValue("words", word, allowed)
        self._resolve(words=words, tokens=token_ids("tokens", self.tokens))

    @property
    def neutral(self) -> bool:
        return not self.words and not self.tokens

    def with_tokens(self, table: Sequence[bytes]) -> Self:
        """The same by ids, of a tokenizer with these bytes of each id."""
        if not self.words:
            return self
        begins = re.compile(rf"[\W_]*(?:{'|'.join(map(re.escape, self.words))})", re.IGNORECASE)
        texts = enumerate(piece.decode(errors="replace") for piece in table)
        matching = [token for token, text in texts if begins.match(text)]
        if not matching:
            allowed = "words with which some token of the model begins"
            raise InvalidValue("words", ", ".join(self.words), allowed)
        return replace(self, words=(), tokens=sorted({*self.tokens, *matching}))

    def begin(self, history: Tensor, vocabulary: int, /) -> Tensor:
        # The memory is the tokens themselves, a row each: there a graph finds them.
        if self.words:
            allowed = "the model's tokens: penalty.with_tokens(lil.token_bytes(tokenizer))"
            raise InvalidValue("nowait", "words alone", allowed)
        ids = [token for token in self.tokens if 0 <= token < vocabulary]
        return devices.put([ids] * len(history), history.device, torch.int64)

    def fixed_shape(self, _device: torch.device, /) -> bool:
        return True

    def push(self, memory: Tensor, newest: Tensor, live: Tensor | None) -> Tensor:  # noqa: ARG002
        return memory

    def apply(self, memory: Tensor, scores: Tensor) -> Tensor:
        return self._writable(scores).scatter_(1, memory, -torch.inf)

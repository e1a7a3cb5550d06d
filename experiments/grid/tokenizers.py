"""A tokenizer alone, for texts that came from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.models import REASONER


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and the bytes of each of its tokens."""

    name: str
    tokenizer: Any
    table: Sequence[bytes]

    def pieces(self, text: str) -> list[bytes]:
        """A text in the bytes of its tokens, without special ones around it."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [self.table[i] for i in ids]


def load(name: str) -> Tokenizer:
    """A model's tokenizer; none of its weights are needed.

    Args:
        name: `reasoner`, a folder or a hub id.

    Raises:
        InvalidValue: none there, or one whose tokens have no bytes of their own.
    """
    from transformers import AutoTokenizer

    from lil import token_bytes

    location = name
    if name == REASONER:
        from experiments.reasoner import checkpoint_path

        location = str(checkpoint_path())
    try:
        found = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # the hub's client raises many kinds
        reason = str(error).strip().split("\n")[0]
        allowed = f"{REASONER}, a folder with a tokenizer, or a hub id ({reason})"
        raise InvalidValue("tokenizer", name, allowed, [REASONER]) from error
    return Tokenizer(name, found, token_bytes(found))

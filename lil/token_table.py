"""The bytes of each token, such that joined bytes are the text."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from attention.errors import InvalidValue

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = (
    "a fast tokenizer with a byte-level BPE, SentencePiece byte-fallback, Metaspace or Fuse decoder"
)


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Bytes of every token, indexed by token id; ids without a token have none.

    Joined, they are the UTF-8 text of `tokenizer.decode(ids, skip_special_tokens=False,
    clean_up_tokenization_spaces=False)`, but for the leading space that SentencePiece drops, and
    for bytes that are not UTF-8.

    Raises:
        InvalidValue: the tokenizer's decoder cannot be taken token by token (it puts spaces between
            tokens, or has no `backend_tokenizer`), or a sample decodes to another text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InvalidValue("tokenizer", type(tokenizer).__name__, _SUPPORTED)
    piece_of = _piece_function(json.loads(backend.to_str())["decoder"])
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        table[index] = piece_of(token)
    _compare_with_decode(tokenizer, table)
    return table


def token_id(table: Sequence[bytes], piece: bytes, tokenizer: Any) -> int:
    """The id of the token with these bytes; of several, the one that the tokenizer writes.

    Raises:
        InvalidValue: no token has these bytes, or several do and the tokenizer writes none of them.
    """
    ids = [i for i, text in enumerate(table) if text == piece]
    if len(ids) == 1:
        return ids[0]
    written = tokenizer(piece.decode(errors="replace"), add_special_tokens=False)["input_ids"]
    if len(written) != 1 or written[0] not in ids:
        raise InvalidValue("token", piece, f"the text of one token id, not of {ids}")
    return int(written[0])


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(hidden)})
    return alphabet


def _piece_function(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    replacements: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": mark}:
                replacements.append((mark, " "))
            case {"type": "Strip", "content": " ", "stop": 0}:
                pass  # the leading space of a whole text, see the docstring of `token_bytes`
            case _:
                raise InvalidValue("tokenizer decoder", step["type"], _SUPPORTED)
    if not steps:  # without a decoder `tokenizers` puts a space between tokens
        raise InvalidValue("tokenizer decoder", None, _SUPPORTED)
    fallback = "ByteFallback" in kinds

    def piece(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(token) if fallback else None
        return bytes([int(match[1], 16)]) if match else token.encode()

    return piece


def _byte_level(token: str) -> bytes:
    # As the decoder does: a token with a character outside the alphabet, such as an added newline,
    # is plain text.
    alphabet = byte_alphabet()
    if all(char in alphabet for char in token):
        return bytes(alphabet[char] for char in token)
    return token.encode()


def _compare_with_decode(tokenizer: Any, table: list[bytes]) -> None:
    """Refuse rather than corrupt a stream: a sample of the vocabulary must decode to its bytes."""
    ids = [
        i
        for i, piece in enumerate(table)
        if piece and piece.decode(errors="ignore").encode() == piece
    ]
    ids = ids[:: max(1, len(ids) // 512)]
    ours = b"".join(table[i] for i in ids).decode()
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if text not in (ours, ours.removeprefix(" ")):
        raise InvalidValue("tokenizer", type(tokenizer).__name__, _SUPPORTED)

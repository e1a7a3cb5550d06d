"""What a codec must hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from attention.errors import InvalidValue
from attention.testing.broken import Breach, require
from lil.compression.codecs import CODECS, Codec, Symbols
from lil.testing.declared import by_path

KINDS = (Symbols(), Symbols(width=4, alphabet=500))  # text, and token ids
LENGTH = 300


def _streams(kind: type[Codec]) -> Iterator[tuple[Symbols, bytes]]:
    """What the codec takes of text and token ids, fresh at first and then with repeats."""
    refused: InvalidValue | None = None
    for symbols in KINDS:
        try:
            kind(symbols)
        except InvalidValue as error:
            if refused is not None:
                raise Breach(f"it takes neither text nor token ids: {error}") from error
            refused = error
            continue
        draw = random.Random(0)
        fresh = [draw.randrange(min(symbols.alphabet or 256, 256)) for _ in range(LENGTH // 3)]
        words = (fresh * 3)[:LENGTH]
        yield symbols, b"".join(word.to_bytes(symbols.width, "little") for word in words)


def _fed(kind: type[Codec], symbols: Symbols, data: bytes) -> int:
    codec = kind(symbols)
    codec.feed(data)
    return codec.size()


def declared(kind: type[Codec]) -> str:
    """Found by its path, with a name and a line that says what it is."""
    by_path(CODECS, kind)
    line = (kind.__doc__ or "").strip().partition("\n")[0]
    require(bool(line), "its docstring must have a first line: lists show it")
    return line


def empty(kind: type[Codec]) -> str:
    """Nothing has a size, and feeding nothing changes none."""
    sizes = []
    for symbols, data in _streams(kind):
        sizes.append(size := kind(symbols).size())
        require(isinstance(size, int) and size >= 0, f"nothing has the size {size!r}, not bytes")
        for begin in (b"", data):
            codec = kind(symbols)
            codec.feed(begin)
            before = codec.size()
            codec.feed(b"")
            require(codec.size() == before, f"feed(b'') takes size() from {before} to another")
    return f"nothing takes {' or '.join(map(str, dict.fromkeys(sizes)))} bytes"


def cuts(kind: type[Codec]) -> str:
    """The same size however the stream is cut between symbols."""
    for symbols, data in _streams(kind):
        whole = _fed(kind, symbols, data)
        for step in (1, 7, 250):
            codec, width = kind(symbols), step * symbols.width
            for at in range(0, len(data), width):
                codec.feed(data[at : at + width])
            size = codec.size()
            require(
                size == whole,
                f"{LENGTH} symbols of {symbols.width} bytes take {whole} bytes fed at once, but "
                f"{size} in pieces of {step}",
            )
    return "pieces of 1, 7 and 250 symbols are one piece"


def stays_open(kind: type[Codec]) -> str:
    """Reading the size changes nothing of what follows."""
    for symbols, data in _streams(kind):
        codec, width = kind(symbols), 50 * symbols.width
        for at in range(0, len(data), width):
            codec.feed(data[at : at + width])
            read, want = (codec.size(), codec.size()), _fed(kind, symbols, data[: at + width])
            require(
                read == (want, want),
                f"size() gives {read[0]}, then {read[1]} at byte {at + width}; never read before, "
                f"it is {want}: a reading must leave the stream open",
            )
    return f"read every 50 of {LENGTH} symbols"


def copies(kind: type[Codec]) -> str:
    """A copy and its origin go on without each other."""
    for symbols, data in _streams(kind):
        half = len(data) // symbols.width // 2 * symbols.width
        codec = kind(symbols)
        codec.feed(data[:half])
        twin = codec.copy()
        for one, rest in ((codec, data[half:]), (twin, data[:half])):
            one.feed(rest)
        for one, rest in ((codec, data[half:]), (twin, data[:half])):
            want = _fed(kind, symbols, data[:half] + rest)
            require(
                one.size() == want,
                f"after copy() and other symbols for each, size() is {one.size()}, not {want}: "
                "copy() must share nothing that feed() changes",
            )
    return "a copy is independent"


CODEC_CHECKS: Mapping[str, Callable[[type[Codec]], str]] = {
    "declared": declared,
    "empty": empty,
    "cuts": cuts,
    "open": stays_open,
    "copy": copies,
}

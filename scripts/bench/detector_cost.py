"""What watching costs: microseconds a token and bytes held, of each detector.

python scripts/bench/detector_cost.py                 # every detector, 100,000 tokens
python scripts/bench/detector_cost.py --detectors "guardian,recurrence(k=8)" --tokens 20000
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from programs import Column, measuring, one_message, parser, printed, table
from programs import conditions as shown

from attention.errors import InvalidValue
from experiments.bench import conditions
from experiments.grid import models
from experiments.grid.detectors import build_detectors
from experiments.grid.presets import load
from experiments.store.labels import labels
from lil import Detector
from lil.hidden_states import Reading

WORDS = 20_000
#: Every detector by itself, and a combination.
ALL = "guardian,cycle,budget,chopper,recurrence,stall,margin,either(parts='recurrence+margin')"
PARTS = 10  # in which a text is timed, so that the last can be set beside the whole


#: Of a row.
COLUMNS = (
    Column("detector", "detector", words=True),
    Column("us a token", "us_a_token", ".2f"),
    Column("of the last tenth", "us_a_token_last", ".2f"),
    Column("MB held", "bytes", ".2f", 1e-6),
)


class _Numbers(Reading):
    """Random numbers in the place of what a model computes."""

    def __init__(self, hidden: int, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._size = hidden

    def hidden(self, block: int) -> torch.Tensor:  # noqa: ARG002 - one is as dear as the other
        return torch.randn(self._size, generator=self._random)

    def margin(self, token: bytes) -> float:  # noqa: ARG002 - one is as dear as the other
        return 20.0


def detectors(
    names: str,
    tokens: int,
    repeats: int = 3,
    seed: int = 0,
    model: str = "reasoner",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time and memory of detectors that watch `tokens` tokens of text that does not repeat.

    The text is random words: each passage is a new one, so that what a detector remembers grows as
    fast as it can; a sentence ends every 16 tokens, a chunk every 64. Verdicts are ignored. What a
    model computes is replaced by random numbers, whose making is part of the time. Bytes are those
    that Python and NumPy took for the watcher; deflate's own window, 0.3 MB, is not among them.

    Args:
        names: of detectors, as `lil sweep --detector` takes them.
        tokens: of the text.
        repeats: texts that are timed; the median counts.
        seed: of the texts.
        model: whose hidden size states have, and whose chopper is taken.
        progress: gets a line for each detector.

    Returns:
        `rows`, one a detector, and conditions.

    Raises:
        InvalidValue: an unknown detector or model, fewer tokens than parts, or no repeat.
    """
    if tokens < PARTS:
        raise InvalidValue("tokens", tokens, f"at least {PARTS}")
    if repeats < 1:
        raise InvalidValue("repeats", repeats, "at least 1")
    config = load("demo", {"models": [model], "detectors": names})
    hidden = models.load(models.find(model), "float32", "cpu").model.config.hidden_size
    rows = []
    built = build_detectors(config)
    for detector, name in zip(built, labels(built), strict=True):
        progress(name)
        timed = [_timed(detector, _text(tokens, seed + turn), hidden) for turn in range(repeats)]
        rows.append(
            {
                "detector": name,
                "us_a_token": statistics.median(sum(parts) / tokens * 1e6 for parts in timed),
                "us_a_token_last": statistics.median(p[-1] * PARTS / tokens * 1e6 for p in timed),
                "bytes": _held(detector, _text(tokens, seed), hidden),
            }
        )
    return {
        "rows": rows,
        "tokens": tokens,
        "repeats": repeats,
        "seed": seed,
        "model": model,
        "hidden_size": hidden,
        **conditions(),
    }


def _text(tokens: int, seed: int) -> list[bytes]:
    draw = random.Random(seed)
    words = [f" w{n}".encode() for n in range(WORDS)]
    return [
        b".\n\n" if at % 64 == 63 else b"." if at % 16 == 15 else draw.choice(words)
        for at in range(tokens)
    ]


def _watched(detector: Detector, hidden: int) -> Callable[[bytes], None]:
    """Feeds one token to a new watcher, as the decode loop does."""
    watcher, reading = detector.watch(b""), _Numbers(hidden, 0)

    def feed(piece: bytes) -> None:
        watcher.tokens += 1
        watcher.push(piece)
        if watcher.wants:
            watcher.see(reading)

    return feed


def _timed(detector: Detector, text: list[bytes], hidden: int) -> list[float]:
    """Seconds of each part of the text."""
    feed = _watched(detector, hidden)

    def spent() -> Iterator[float]:
        for part in range(PARTS):
            pieces = text[part * len(text) // PARTS : (part + 1) * len(text) // PARTS]
            started = time.perf_counter()
            for piece in pieces:
                feed(piece)
            yield time.perf_counter() - started

    return list(spent())


def _held(detector: Detector, text: list[bytes], hidden: int) -> int:
    """Bytes that a watcher holds at the end of the text."""
    tracemalloc.start()
    try:
        feed = _watched(detector, hidden)
        for piece in text:
            feed(piece)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--detectors", default=ALL, help="names, parameters in brackets")
    flags.add_argument("--tokens", type=int, default=100_000, help="of a text that does not repeat")
    flags.add_argument("--repeats", type=int, default=3, help="texts; the median counts (3)")
    flags.add_argument("--seed", type=int, default=0, help="of the texts (0)")
    flags.add_argument("--model", default="reasoner", help="whose chopper is taken (reasoner)")
    args = flags.parse_args(argv)
    with measuring() as progress:
        found = detectors(
            args.detectors, args.tokens, args.repeats, args.seed, args.model, progress
        )
    rows = table(f"a detector that watches {args.tokens:,} tokens", COLUMNS, found["rows"])
    return printed(found, args.json, rows, shown(found))


if __name__ == "__main__":
    sys.exit(main())

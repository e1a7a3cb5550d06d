"""The specification's tables of the LZ penalty, V = 16."""

from __future__ import annotations

V = 16

#: History, Bf, W, the values of `derived`, and where `printed` differs; other tokens: log2 V = 4.
CODES: list[tuple[str, int, int, dict[int, float], dict[int, float]]] = [
    ("1 2 3 4 5 6 7", 2, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    ("5 1 2 3 9 1", 1, 5, {1: 2, 2: -0.415037, 3: 1, 5: 2.321928, 9: 0}, {2: -1.678072}),
    (
        "1 2 3 4 5 6 1 2",
        2,
        6,
        {1: 2.584963, 2: 2.321928, 3: -0.736966, 4: 1.584963, 5: 1, 6: 0},
        {3: -1.736966},
    ),
    ("1 2 3 4 " * 3, 4, 8, {1: -1, 2: 1.584963, 3: 1, 4: 0}, {1: -1.152003}),
    ("1 2 3 4 5 5", 1, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    (
        "1 2 3 1 2 4 7 1 2",
        2,
        7,
        {1: 2, 2: 1.584963, 3: -0.678072, 4: -1, 7: 0},
        {3: -1.777608, 4: -1.584963},
    ),
    ("1 2 3 4 9 8", 2, 4, {1: 2, 2: 1.584963, 3: 1, 4: 0}, {}),
    (
        "1 2 3 7 2 4 6 1 2",
        2,
        7,
        {1: 2.807355, 2: 1.584963, 3: -0.678072, 4: 1, 6: 0, 7: 2},
        {3: -1.777608},
    ),
    ("1 2 3", 4, 8, {}, {}),
    ("7 " * 10, 3, 5, {7: -1.584963}, {7: -1}),
]

#: History, Bf, ring, and what `rate` takes off at alpha = 1; other tokens lose nothing.
RATES: list[tuple[str, int, int, dict[int, float]]] = [
    ("1 2 3 4 " * 3, 4, 12, {1: 3.0712, 2: 2, 3: 2.4150, 4: 3}),
    ("7 " * 10, 3, 8, {7: 3.25}),
    ("1 2 3 4 5 6 1 2", 2, 8, {1: 2.4150, 2: 3, 3: 2.5359, 4: 1.4150, 5: 1.6781, 6: 2}),
    ("1 2 3 4 5 6 1 2", 2, 6, {1: 2.4150, 2: 3, 5: 1.6781, 6: 2}),
]


def tokens(history: str) -> list[int]:
    """The history as token ids."""
    return [int(token) for token in history.split()]


def all_tokens(named: dict[int, float], other: float) -> list[float]:
    """One value for each token (V,)."""
    return [named.get(token, other) for token in range(V)]

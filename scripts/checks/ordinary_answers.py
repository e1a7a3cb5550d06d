"""Answers that repeat themselves because they were asked to, and loops that nobody asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

LINES = (
    "I will not talk in class.",
    "All work and no play makes Jack a dull boy.",
    "Yes.",
    "pass",
    "    print('hello')",
)
#: How a matrix of zeros is written: what stands before, between and behind the cells of a row.
MATRICES = {
    "list": ("  [", "0, ", "0],\n"),
    "latex": ("", "0 & ", "0 \\\\\n"),
    "text": ("", "0 ", "0\n"),
    "decimals": ("", "0. ", "0.\n"),
}

_RHYME = (
    "the malt\nThat lay in", "the rat,\nThat ate", "the cat,\nThat killed", "the dog,\nThat bit",
    "the cow with the crumpled horn,\nThat tossed", "the maiden all forlorn,\nThat milked",
    "the man all tattered and torn,\nThat kissed", "the priest all shaven and shorn,\nThat married",
    "the cock that crowed in the morn,\nThat waked", "the farmer sowing his corn,\nThat kept",
    "the horse and the hound and the horn,\nThat belonged to",
)  # fmt: skip

_SOLUTION = """The train leaves at nine and needs {a} minutes to the bridge. From there it is {b}
kilometres to the station, which at {c} kilometres an hour takes {d} minutes. So the journey takes
{e} minutes in all, and it arrives {e} minutes after nine. Let me check this. If the train were
late by {a} minutes, the second part would not change, since its speed is the same there.

"""


def answers() -> Iterator[tuple[str, str, str]]:
    """Kind, name and text of answers that somebody asked for."""
    for times in (20, 30, 50):
        for line in LINES:
            yield "lines", f"{times} lines {line.strip()!r}", (line + "\n") * times
    for size in (8, 12, 16):
        for name, (before, between, behind) in MATRICES.items():
            row = before + between * (size - 1) + behind
            yield "zeros", f"{size} x {size} zeros, {name}", row * size
    alike = [{"id": n, "name": f"item {n}", "price": 0, "tags": []} for n in range(25)]
    same = [{"x": 0, "y": 0, "seen": False, "label": None}] * 20
    for name, records in (("like", alike), ("equal", same)):
        for indent in (None, 2):
            told = json.dumps(records, indent=indent)
            yield "records", f"{len(records)} {name} records, indent {indent}", told
    head = "| n " + "| a | b | c " * 3 + "|\n" + "|---" * 10 + "|\n"
    cells = "| 0 | 0 | 0 " * 3 + "|\n"
    yield (
        "records",
        "table, numbered rows of zeros",
        head + "".join(f"| {n} " + cells for n in range(20)),
    )
    yield "records", "table, equal rows", head + ("| x " + cells) * 12
    wide = "| " + " | ".join(f"column {n}" for n in range(12)) + " |\n" + "| :--- " * 12 + "|\n"
    rows = (" | ".join(str(n * m) for m in range(12)) for n in range(20))
    yield (
        "records",
        "table, 12 x 20 with a row of alignment",
        wide + "".join(f"| {row} |\n" for row in rows),
    )
    yield (
        "verse",
        "song, ninety-nine verses",
        "".join(
            f"{n} bottles of beer on the wall, {n} bottles of beer.\n"
            f"Take one down and pass it around, {n - 1} bottles of beer on the wall.\n\n"
            for n in range(99, 0, -1)
        ),
    )
    yield (
        "verse",
        "rhyme, each verse with all before",
        "".join(
            f"This is {' '.join(_RHYME[n::-1])} the house that Jack built.\n\n"
            for n in range(len(_RHYME))
        ),
    )
    first = "".join(_solution(seed) for seed in range(8))
    yield "prose", "solutions and an honest second pass", first + "Once more.\n\n" + first


def _solution(seed: int) -> str:
    draw = random.Random(seed)
    a, b, c, d = (draw.randrange(2, 99) for _ in range(4))
    return _SOLUTION.format(a=a, b=b, c=c, d=d, e=a + d)


def loops(length: int = 16_000) -> Iterator[tuple[str, str]]:
    """Name and text of loops that never end, each behind an honest beginning.

    Args:
        length: characters of each loop.
    """
    sentence = "Wait, let me reconsider the problem once more. "
    block = "".join(_solution(seed) for seed in (100, 101, 102))
    words = ("now", "again", "here", "then", "so", "once", "still")
    draw = random.Random(0)
    changed = (
        f"So {draw.choice(words)} we have that the sum of the two is the same as before, and so "
        "the answer follows from the first line, which we have seen. "
        for _ in range(length // 120)
    )
    for name, round_ in (
        ("?!", "?! "),
        ("a line", "I cannot help with that.\n"),
        ("a sentence", sentence),
        ("a sentence and an end of thinking", sentence + "</think>\n"),
        ("three paragraphs", block),
    ):
        yield name, _solution(0) + (round_ * (length // len(round_) + 1))[:length]
    yield "one word changes", _solution(0) + "".join(changed)

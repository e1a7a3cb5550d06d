"""A prompt's facts, read out of its sentences by their names, numbers and telling words."""

from __future__ import annotations

import re

from recomputing_study import language

#: Words that say that a number, or a second name, is added or taken away.
ADDED = {
    "more",
    "above",
    "extra",
    "tops",
    "top",
    "beyond",
    "beats",
    "exceeds",
    "plus",
    "ahead",
    "over",
    "passes",
}
TAKEN = {
    "less",
    "below",
    "short",
    "trails",
    "under",
    "lags",
    "misses",
    "minus",
    "behind",
    "beneath",
    "lacks",
}
JOINED = {
    "together",
    "sum",
    "joins",
    "adds",
    "both",
    "combined",
    "plus",
    "unites",
    "merges",
    "along",
    "added",
}
PARTED = {
    "without",
    "rest",
    "removed",
    "leaves",
    "less",
    "gap",
    "minus",
    "except",
    "keeps",
    "gone",
    "cut",
    "off",
}


def values(prompt: str) -> dict[str, int]:
    """The right value of every name that a prompt tells enough about."""
    body = prompt.strip().rpartition("\n")[0].partition(".")[2]
    told = [one.strip() for one in re.findall(r"[^.]+\.", body)]
    subjects = [re.sub(r"^The ", "", one).split()[0] for one in told]
    known: dict[str, int] = {}
    left = list(zip(subjects, told, strict=True))
    while left:
        waiting = []
        for name, sentence in left:
            value = _value(sentence, set(subjects), known)
            if value is None:
                waiting.append((name, sentence))
            elif known.setdefault(name, value) != value:
                raise ValueError(f"{name} is told twice, and not the same: {prompt!r}")
        if len(waiting) == len(left):
            break
        left = waiting
    return known


def _value(sentence: str, names: set[str], known: dict[str, int]) -> int | None:
    said = re.findall(r"[A-Za-z]+|\d+", sentence)
    _, *operands = [one for one in said if one in names]
    numbers = [int(one) for one in said if one.isdigit()]
    if any(one not in known for one in operands):
        return None
    worth = [known[one] for one in operands]
    others = set(said) - names
    match len(worth), len(numbers):
        case 0, 1:
            return numbers[0]
        case 1, 0:
            return 2 * worth[0]
        case 1, 1 if bool(others & TAKEN) != bool(others & ADDED):
            return worth[0] + numbers[0] * (1 if others & ADDED else -1)
        case 2, 0 if bool(others & JOINED) != bool(others & PARTED):
            return worth[0] + worth[1] * (1 if others & JOINED else -1)
    raise ValueError(f"no fact known here: {sentence!r}")


def asked(prompt: str) -> tuple[str, int | None]:
    """What a prompt asks for, and its right value."""
    goal = language.goal(prompt)
    return goal, values(prompt).get(goal)

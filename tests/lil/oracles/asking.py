"""Oracles of the published rules that stop a thinking by the answers asked for on the way.

`numbers` maps the place of a question, in tokens read, to what the answer there gave; `places` are
those asked, in order. A rule gives the place at which it stops, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def asked(pieces: Sequence[bytes], at: int) -> list[int]:
    """Every `at` tokens, where the thinking has a token more: it is over in the mark's last one."""
    ends = (n for n in range(len(pieces)) if b"</think>" in b"".join(pieces[: n + 1]))
    return [place for place in range(1, next(ends, len(pieces))) if place % at == 0]


def deer(numbers: Mapping[int, float], places: Sequence[int], *, above: float) -> int | None:
    """DEER (arXiv 2504.15895): the first answer with a confidence beyond the threshold."""
    for place in places:
        if numbers[place] > above:
            return place
    return None


def convergence(numbers: Mapping[int, float], places: Sequence[int], *, times: int) -> int | None:
    """Answer convergence (arXiv 2506.02536): so many equal answers in a row; 0 is no answer."""
    for end in range(times, len(places) + 1):
        answers = {numbers[place] for place in places[end - times : end]}
        if len(answers) == 1 and answers != {0}:
            return places[end - 1]
    return None


def variance(entropies: Sequence[float], alpha: float) -> float:
    """EAT's variance: each number's around the average that has that number in it already."""
    mean, spread = entropies[0], 0.0
    for entropy in entropies[1:]:
        mean = (1 - alpha) * mean + alpha * entropy
        spread = (1 - alpha) * spread + alpha * (entropy - mean) ** 2
    return spread


def eat(
    numbers: Mapping[int, float], places: Sequence[int], *, below: float, alpha: float, least: int
) -> int | None:
    """EAT (arXiv 2509.26522): the first small variance of at least so many entropies."""
    for count in range(max(least, 1), len(places) + 1):
        entropies = [numbers[place] for place in places[:count]]
        if variance(entropies, alpha) < below:
            return places[count - 1]
    return None


def halt(numbers: Mapping[int, float], places: Sequence[int], *, below: float) -> int | None:
    """HALT-CoT: the first answer with an entropy below the threshold."""
    return next((place for place in places if numbers[place] < below), None)

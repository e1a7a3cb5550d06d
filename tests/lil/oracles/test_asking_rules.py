"""Detectors that ask for answers stop where the published rules do, on random numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from lil import detectors
from tests.lil.oracles import asking

#: Numbers at a threshold and around it.
CONFIDENCES = tuple(math.nextafter(x, y) for x in (0.5, 0.95) for y in (0, x, 1))
#: Short sums and products of these are exact, so that a variance may equal a threshold.
ENTROPIES = (0.0, 0.25, 0.5, 0.5, 0.75, 2.0)

Case = tuple[str, dict[str, Any], dict[str, Any], Callable[..., int | None], tuple[float, ...]]


def case(rule: str, rng: random.Random) -> Case:
    """A detector's name and parameters of its own, the rule's parameters, the rule, and numbers."""
    if rule == "deer":
        return "confidence", {}, {"above": rng.choice(CONFIDENCES)}, asking.deer, CONFIDENCES
    if rule == "convergence":
        return "agreement", {}, {"times": rng.randint(2, 4)}, asking.convergence, (0, 5, 5, 7)
    if rule == "halt":
        own = {"measure": "mean", "alpha": 1.0, "least": 1}
        return "entropy", own, {"below": rng.choice(ENTROPIES[1:])}, asking.halt, ENTROPIES
    alpha = rng.choice((0.25, 0.5))
    reached = asking.variance([rng.choice(ENTROPIES) for _ in range(rng.randint(1, 4))], alpha)
    params = {"below": reached or 1e-6, "alpha": alpha, "least": rng.randint(1, 6)}
    return "entropy", {"measure": "variance"}, params, asking.eat, ENTROPIES


@pytest.mark.parametrize("rule", ["deer", "convergence", "halt", "eat"])
def test_stops_where_the_rule_does(rule: str) -> None:
    rng, stopped = random.Random(rule), 0
    for _ in range(500):
        name, own, params, oracle, values = case(rule, rng)
        at = rng.randint(1, 5)
        pieces = [rng.choice((b"a", b" b", b">")) for _ in range(at * rng.randint(1, 9) + 1)]
        if rng.random() < 0.5:
            end = rng.randrange(len(pieces))
            pieces[end:end] = rng.choice(([b"</think>"], [b"</th", b"ink", b"> c"]))
        numbers = {place: rng.choice(values) for place in range(at, len(pieces) + 1, at)}
        detector = detectors.get(name, at=at, **own, **params)
        watcher = detector.watch(b"A question.")
        watcher.recall({signal: tuple(numbers.items()) for signal in detector.signals})
        cut = rng.randint(0, len(pieces))
        watcher.update(pieces[:cut])
        verdict = watcher.update(pieces[cut:])
        place = oracle(numbers, asking.asked(pieces, at), **params)
        wanted = None if place is None else (place, place + 1)
        assert (verdict and (verdict.token, verdict.evidence["step"])) == wanted, (params, numbers)
        stopped += place is not None
    assert 100 < stopped < 480


def test_with_alpha_one_the_mean_is_the_newest_number_to_the_last_bit() -> None:
    """As in the authors' code, whose mean is (1 - alpha) m + alpha x."""
    halt = detectors.get("entropy", measure="mean", alpha=1, least=1, below=0.2)
    assert not halt.evidence([1.7, 0.2])
    assert halt.evidence([1.7, math.nextafter(0.2, 0)])

"""Several samples of one problem: how many are solved on average, and by any of k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import comb
from typing import Any

from experiments.report.aggregate import mean
from experiments.report.bootstrap import Bootstrap
from experiments.store.samples.sample import Sample


def pass_at(n: int, solved: int, k: int) -> float:
    """The chance that k of n samples, drawn without putting back, hold one of the `solved`.

    1 - C(n - solved, k) / C(n, k): unbiased for k fresh samples (Chen et al., 2021), which the
    share of problems solved by the first k is too, but noisier.

    Raises:
        ValueError: k is not from 1 to n, or `solved` not from 0 to n.
    """
    if not (1 <= k <= n and 0 <= solved <= n):
        raise ValueError(f"pass@{k} of {n} samples, {solved} solved")
    return 1 - comb(n - solved, k) / comb(n, k)


def steps(n: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ... below n, then n."""
    size = 1
    while size < n:
        yield from (step * size for step in (1, 2, 5) if step * size < n)
        size *= 10
    yield n


def attempts(samples: list[Sample], is_complete: bool, bootstrap: Bootstrap) -> dict[str, Any]:
    """avg@n and pass@k of a row, where every problem has all its n > 1 samples, scored.

    Intervals resample problems: samples of one are not independent of each other.
    """
    tried: dict[str, list[bool | None]] = defaultdict(list)
    for sample in samples:
        tried[sample.item_id].append(sample.correct)
    n = max(map(len, tried.values()))
    is_whole = is_complete and all(len(got) == n and None not in got for got in tried.values())
    solved = [sum(map(bool, got)) for got in tried.values()] if is_whole and n > 1 else []
    at = {
        k: bootstrap.mean([pass_at(n, of_problem, k) for of_problem in solved])
        for k in (steps(n) if solved else ())
    }
    return {
        "samples_per_problem": n,
        "avg_at_k": mean(of_problem / n for of_problem in solved),
        "pass_at_k": mean(float(of_problem > 0) for of_problem in solved),
        "pass_at": {k: found.estimate for k, found in at.items()},
        "pass_at_low": {k: found.low for k, found in at.items()},
        "pass_at_high": {k: found.high for k, found in at.items()},
    }

"""Counters for Prometheus, which engines publish at /metrics beside their own.

An engine that decodes in a process of its own publishes what is counted there only where
Prometheus' client is told of a folder that processes share, `PROMETHEUS_MULTIPROC_DIR`.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _metrics() -> dict[str, Any]:
    """Prometheus' own objects: its registry is one a process, and takes each name once."""
    # An engine has it; `lil` by itself needs none.
    from prometheus_client import Counter

    described = {
        "requests": ("Requests with a penalty, or under watch.", ["what"]),
        "tokens": ("Tokens chosen with a penalty, or under watch.", ["what"]),
        "verdicts": ("Verdicts that were acted upon.", ["detector", "then"]),
        "tokens_below_cap": ("How far requests that were ended were from their own caps.", []),
    }
    return {name: Counter(f"lil_{name}", *told) for name, told in described.items()}


class Counters:
    """`lil_requests_total` and its like.

    Args:
        told: whether anything is; of several ranks that decide the same, one tells.
    """

    def __init__(self, told: bool = True) -> None:
        self._metrics = _metrics() if told else {}

    def count(self, what: str, requests: int, tokens: int) -> None:
        """With this penalty, or `stop_on`: tokens chosen, and requests that chose their first."""
        for name, number in ("requests", requests), ("tokens", tokens):
            if self._metrics and number:
                self._metrics[name].labels(what).inc(number)

    def verdict(self, detector: str, then: str, tokens_below_cap: int) -> None:
        """One was acted upon, so far from the request's cap if it ended there."""
        if self._metrics:
            self._metrics["verdicts"].labels(detector, then).inc()
            self._metrics["tokens_below_cap"].inc(tokens_below_cap)

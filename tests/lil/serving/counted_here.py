"""Our counters in this process, and the part of an engine's configuration that they read."""

from __future__ import annotations

from types import SimpleNamespace

#: How many share a model, of a worker by itself.
ALONE = SimpleNamespace(rank=0, tensor_parallel_size=1)


def counted(name: str, **labels: str) -> float:
    """A counter of ours."""
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value(f"lil_{name}_total", labels) or 0

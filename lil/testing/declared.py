"""What a class must say of itself so that sweeps can store it and build it again."""

from __future__ import annotations

import json
from typing import Any

from attention.registry import Registry
from attention.testing.broken import Breach, require, require_aliases


def by_path(registry: Registry[Any], kind: type) -> None:
    """Raise Breach unless the class can be found by its import path, where it has one."""
    if "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__":
        registry.find(f"{kind.__module__}:{kind.__qualname__}")


def parameters(registry: Registry[Any], thing: Any) -> str:
    """Found by its path, a frozen dataclass, and the same again from its params() in JSON."""
    by_path(registry, type(thing))
    require_aliases(type(thing))
    params = thing.params()
    try:
        stored = json.loads(json.dumps(params))
        again = type(thing)(**stored)
    except TypeError as error:
        raise Breach(f"params() does not survive JSON: {error}") from error
    told = again.params()
    require(
        told == params == stored,
        f"built again from params() = {params} it has params() = {told}: name every parameter "
        "there, as JSON has it, lists instead of tuples",
    )
    return ", ".join(f"{k}={v!r}" for k, v in params.items()) or "no parameters"

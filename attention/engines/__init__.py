"""What moves the bytes of keys and values: one set of operations, several ways to run them."""

from __future__ import annotations

import torch

from attention.engines.cpp import CppEngine
from attention.engines.engine import QKV as QKV
from attention.engines.engine import AttentionOutput as AttentionOutput
from attention.engines.engine import Engine as Engine
from attention.engines.triton import FlashEngine, TritonEngine
from attention.errors import InvalidValue, check_choice

#: By name.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (CppEngine(), TritonEngine(), FlashEngine(), Engine())
}
#: What "auto" asks first, by the kind of device; the plain engine works everywhere.
FASTEST = {"cpu": "cpp", "cuda": "triton"}


def select(name: str, device: torch.device, dtype: torch.dtype) -> Engine:
    """The engine of this name for a model; "auto" is the fastest that can work.

    Raises:
        InvalidValue: no such engine, or one that cannot work here, with the reason.
    """
    check_choice("engine", name, ("auto", *ENGINES))
    if name == "auto":
        first = ENGINES[FASTEST.get(device.type, Engine.name)]
        return first if first.refusal(device, dtype) is None else ENGINES[Engine.name]
    reason = ENGINES[name].refusal(device, dtype)
    if reason is not None:
        raise InvalidValue("engine", name, reason)
    return ENGINES[name]

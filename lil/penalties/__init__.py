"""Penalties: objects that change the raw logits of a sequence before its next token is chosen.

One file each; `names()` reads the folder and `get(name, ...)` imports the file on demand, so adding
a penalty touches no table. Each is a transformers `LogitsProcessor` for `generate()` and a
`Penalty` for `lil.decode`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor

from attention.errors import InvalidValue
from lil.penalties._history import HistoryPenalty
from lil.penalties.lz import LZPenalty

__all__ = ["HistoryPenalty", "LZPenalty", "Penalty", "describe", "get", "names"]


@runtime_checkable
class Penalty(Protocol):
    """A transformers `LogitsProcessor` that can be cloned.

    A penalty given to `decode` is a template: each row works on its own `clone()`, so a penalty may
    keep state. It is called once a token, on prompt plus everything generated, with no padding; the
    first call's width is the prompt and every later call is one token wider.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """New scores. `input_ids` (1, n) int64; `scores` (1, V), float32 or the model's float64."""
        ...

    def clone(self) -> Penalty:
        """An independent penalty with the same parameters and no history."""
        ...


def names() -> list[str]:
    """Names of the penalties, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def _class(name: str) -> type[HistoryPenalty[Any]]:
    members = vars(importlib.import_module(f"{__name__}.{name}")).values()
    found = next(m for m in members if isinstance(m, type) and m.__dict__.get("name") == name)
    return cast("type[HistoryPenalty[Any]]", found)


def get(name: str, **params: Any) -> HistoryPenalty[Any]:
    """A penalty by name with its parameters.

    Raises:
        InvalidValue: unknown name, unknown parameter, or a value the penalty refuses.
    """
    known = names()
    if name not in known:
        raise InvalidValue("penalty", name, "one of " + ", ".join(known), choices=known)
    penalty = _class(name)
    accepted = [f.name for f in dataclasses.fields(penalty) if f.init]
    for param in params:
        if param not in accepted:
            allowed = f"a parameter of {name}: " + ", ".join(accepted)
            raise InvalidValue(f"{name} parameter", param, allowed, choices=accepted)
    return penalty(**params)


def describe() -> dict[str, str]:
    """Each penalty's name and its source in one line."""
    return {name: (inspect.getdoc(_class(name)) or "").partition("\n")[0] for name in names()}

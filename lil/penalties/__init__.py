"""Penalties: objects that change the raw logits of a sequence before its next token is chosen.

One file each; `names()` reads the folder and `get(name, ...)` imports the file on demand, so adding
a penalty touches no table. Each is a transformers `LogitsProcessor` for `generate()` and a
`Penalty` for `lil.decode`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from lil.penalties._history import HistoryPenalty
from lil.penalties.lz import LZPenalty
from lil.registry import ClassFolder

__all__ = ["HistoryPenalty", "LZPenalty", "Penalty", "describe", "find", "get", "names"]


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


_FOLDER: ClassFolder[HistoryPenalty[Any]] = ClassFolder(__name__, "penalty")
names, get, find, describe = _FOLDER.names, _FOLDER.get, _FOLDER.find, _FOLDER.describe

"""One `with` block: the method, and what caches know of the model."""

from __future__ import annotations

import copy
import weakref
from functools import cached_property
from typing import Any

from attention.core.ropes import Rope, Still
from attention.layers.layer import Method
from attention.patching.survey import Anatomy, rope_of


def capacity(tokens: int) -> int:
    """Tokens of a row that are reserved where it may have so many: a multiple of 256."""
    return -(-tokens // 256) * 256


class Session:
    """One `on()` block: the backend, what caches must know of the model, and whether it is open."""

    def __init__(
        self, backend: Method, full: Method, model: Any, engine: str, anatomy: Anatomy
    ) -> None:
        self.backend, self.engine, self.anatomy = backend, engine, anatomy
        self.config, self._model = model.config, weakref.ref(model)
        self.family = model.config.model_type
        # Those that hold keys, which caches count from 0 on, and the model's own sliding windows.
        self.layers, self.windows = len(anatomy.softmax), anatomy.windows
        rope, still = rope_of(model), Rope(Still())
        self.ropes = tuple(still if turns == "none" else rope for turns in anatomy.turns)
        self.open = True
        # Rows and tokens of a row that are reserved for captured steps; state grows to as many.
        self.room = (0, 0)
        # Why layers of a class and number cannot be captured, once they were asked.
        self.obstacles: dict[tuple[type, int], str | None] = {}
        self._full = full

    @property
    def model(self) -> Any:
        """The patched model; None once nobody else holds it."""
        return self._model()

    @cached_property
    def full_session(self) -> Session:
        """The same block under full attention: one for all caches that go on so."""
        if self.backend == self._full:
            return self
        twin = copy.copy(self)
        twin.backend, twin.room = self._full, (0, 0)
        return twin

    def close(self) -> None:
        """No cache of this block can be fed any more."""
        self.open = self.full_session.open = False

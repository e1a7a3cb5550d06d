"""One `with` block: the method, and what caches must know of the model."""

from __future__ import annotations

import copy
from typing import Any

from attention.core.ropes import Rope
from attention.layers.layer import Method
from attention.patching.families import windows


class Session:
    """One `on()` block: the backend, what caches must know of the model, and whether it is open.

    Args:
        backend: of the block.
        full: full attention, which rows may go on under.
        model: the patched model.
        engine: name of the engine in force.
    """

    def __init__(self, backend: Method, full: Method, model: Any, engine: str) -> None:
        self.backend, self.engine = backend, engine
        self.config = model.config
        self.layers: int = model.config.num_hidden_layers
        self.windows = windows(model.config)
        self.rope = Rope(getattr(model.base_model, "rotary_emb", None))
        self.open = True
        self._full = full
        self._full_session: Session | None = None

    @property
    def full_session(self) -> Session:
        """The same block under full attention: one for all caches that go on so."""
        if self.backend == self._full:
            return self
        if self._full_session is None:
            self._full_session = copy.copy(self)
            self._full_session.backend = self._full
        return self._full_session

    def close(self) -> None:
        """No cache of this block can be fed any more."""
        self.open = False
        if self._full_session is not None:
            self._full_session.close()

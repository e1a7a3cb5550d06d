"""What every method is: a frozen dataclass of parameters that builds the state of a layer."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from attention.core.ropes import Rope
from attention.layers.layer import Geometry, KeepAll, Layer
from attention.layers.sliding import SlidingLayer
from attention.patching.cache import AttentionCache
from attention.patching.session import patched


class Backend(ABC):
    """Parameters of one attention method; subclasses are frozen dataclasses with keywords only.

    Attributes:
        name: key in the registry.
        source: one line saying where the method comes from.
        budget: the most tokens one decode query may read, current token included; None for all.
        dense_layers: first layers left dense, the model's own sliding layers among them counted.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    budget: int | None
    dense_layers: int = 0

    @property
    @abstractmethod
    def exact_until(self) -> float:
        """Tokens seen up to which this equals full attention; inf for full attention."""

    @property
    def turns_keys(self) -> bool:
        """Whether stored keys change their position, which some rotary embeddings forbid."""
        return False

    @property
    def keeps_all(self) -> bool:
        """Whether every key and value is kept, so that full attention can take over."""
        return self._sample().keeps_all

    @property
    def rewindable(self) -> bool:
        """Whether the newest tokens of a row can be forgotten exactly, in layers of the method."""
        return self._sample().rewindable

    def params(self) -> dict[str, Any]:
        """Every parameter with the value in force, ready for JSON."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {f.name: getattr(self, f.name) for f in fields if f.init}

    def __deepcopy__(self, memo: Any) -> Backend:
        return self  # frozen

    @abstractmethod
    def layer(self, geometry: Geometry) -> Layer:
        """Empty state of a sparsified layer."""

    def _sample(self) -> Layer:
        """An empty layer of no model, which knows what its kind can do."""
        return self.layer(
            Geometry(
                method=self.name,
                index=self.dense_layers,
                B=1,
                Hq=1,
                Hkv=1,
                D=2,
                dtype=torch.float32,
                device=torch.device("cpu"),
                rope=Rope(None),
            )
        )

    def build(self, geometry: Geometry) -> Layer:
        """Empty state of any layer."""
        if geometry.window is not None:
            return SlidingLayer(geometry)
        if geometry.index < self.dense_layers:
            return KeepAll(geometry, budget=None)
        return self.layer(geometry)

    def on(self, model: Any) -> AbstractContextManager[AttentionCache]:
        """Patch a transformers model for the length of a `with` block; yields an empty cache.

        Inside the block pass the cache as `past_key_values`; `cache.new()` gives further ones.
        The model is restored on leaving, whatever happened.

        Raises:
            InvalidValue: the model, its rotary embedding or a parameter does not fit.
        """
        return patched(self, model)

"""The base class of methods: a frozen dataclass of parameters that builds the state of a layer."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from attention.errors import InvalidValue, check_choice, check_flag, check_int
from attention.identity import named
from attention.layers.layer import Geometry, KeepAll, Layer
from attention.layers.sliding import SlidingLayer
from attention.patching.cache import AttentionCache
from attention.patching.patched import patched
from attention.spec import Aliases

#: No sequence is longer; far beyond, a budget is no number that a tensor or a float can hold.
MOST_TOKENS = 2**31 - 1

#: The default of a parameter that follows from the others: `__post_init__` resolves it.
AUTO: Any = None


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """Parameters of one attention method; subclasses are frozen dataclasses with keywords only.

    Attributes:
        name: key in the registry.
        source: one line saying where the method comes from.
        role: "method"; "control", a bound that methods are held against; "null", which changes
            nothing but chance.
        version: raised where the same parameters give other tokens than before.
        least_budget: the smallest budget.
        choices: the values of parameters that are one of a few texts.
        aliases: parameters that say the same, in groups: a later one takes the others' place.
        layer_class: state of a sparsified layer, made as layer_class(geometry, backend). A method
            whose parameters choose among classes answers `layer`, and names here one that can do
            what they all can.
        budget: the most tokens one decode query may read, current token included; None for all.
        dense_layers: first layers left dense, the model's own sliding layers among them counted.

    Raises:
        InvalidValue: a parameter is out of range.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    role: ClassVar[Literal["method", "control", "null"]] = "method"
    version: ClassVar[int] = 1
    least_budget: ClassVar[int] = 1
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    aliases: ClassVar[Aliases] = ()
    layer_class: ClassVar[type[Layer]]
    budget: int | None
    # Results are stored under `params`: what most methods never set is no part of them.
    dense_layers: int = field(default=0, metadata={"left_out": 0})

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                self._resolve(f.name, value.item())
        own = next(f for f in dataclasses.fields(self) if f.name == "budget")
        if self.budget is not None or (own.init and own.default is dataclasses.MISSING):
            check_int("budget", self.budget, self.least_budget)
        if self.budget is not None and self.budget > MOST_TOKENS:
            raise InvalidValue("budget", self.budget, f"at most {MOST_TOKENS} tokens")
        check_int("dense_layers", self.dense_layers, 0)
        for name, texts in self.choices.items():
            check_choice(name, getattr(self, name), texts)

    def _resolve(self, name: str, value: Any) -> None:
        """Put the value in force in the place of a parameter, while the backend is made."""
        object.__setattr__(self, name, value)

    @property
    def exact_until(self) -> float:
        """Tokens seen up to which this equals full attention; inf without a budget."""
        return math.inf if self.budget is None else self.budget

    @property
    def turns_keys(self) -> bool:
        """Whether stored keys change their position, which some rotary embeddings forbid."""
        return False

    @property
    def keeps_all(self) -> bool:
        """Whether every key and value is kept, so that full attention can take over."""
        return self.layer_class.keeps_all

    @property
    def rewindable(self) -> bool:
        """Whether the newest tokens of a row can be forgotten exactly, in layers of the method."""
        return self.layer_class.rewindable

    def params(self) -> dict[str, Any]:
        """Every parameter with the value in force, ready for JSON."""
        values = ((f, getattr(self, f.name)) for f in dataclasses.fields(self) if f.init)
        return {f.name: _listed(x) for f, x in values if f.metadata.get("left_out", ...) != x}

    def identity(self) -> dict[str, Any]:
        """What its runs are stored under: name, version above 1, and every parameter."""
        return named(self, self.params())

    def __deepcopy__(self, memo: Any) -> Backend:
        return self  # frozen

    def check_heads(self, heads: Sequence[int], groups: Sequence[int]) -> None:  # noqa: B027
        """Refuse parameters that do not fit a model: KV heads of its layers, and G of each."""

    def choosing_layers(self, windows: Sequence[int | None]) -> tuple[int, ...]:  # noqa: ARG002
        """The layers that choose for others, in a model of `Geometry.windows`.

        Raises:
            InvalidValue: parameters do not fit the model; asked before any compute.
        """
        return ()

    def layers_of(
        self, field: str, windows: Sequence[int | None], default: Sequence[int]
    ) -> tuple[int, ...]:
        """The layers that a parameter names; where it is None, those from `default` on.

        The method acts on no sliding layers of the model, and none of the first `dense_layers`.

        Raises:
            InvalidValue: the method does not act on a layer that is named.
        """
        own = [i for i, w in enumerate(windows) if w is None and i >= self.dense_layers]
        numbers = getattr(self, field, None)
        if numbers is None:
            return tuple(sorted({min(i for i in own if i >= n) for n in default if n <= own[-1]}))
        if not set(numbers) <= set(own):
            allowed = f"layers of this model that {self.name} acts on: " + ", ".join(map(str, own))
            raise InvalidValue(field, numbers, allowed)
        return tuple(sorted(set(numbers)))

    def layer(self, geometry: Geometry) -> Layer:
        """Empty state of a sparsified layer."""
        return self.layer_class(geometry, self)

    def build(self, geometry: Geometry) -> Layer:
        """Empty state of any layer."""
        if geometry.model_window is not None:
            return SlidingLayer(geometry, Full())
        if geometry.index < self.dense_layers:
            return KeepAll(geometry, Full())
        layer = self.layer(geometry)
        layer.exact_until = self.exact_until
        return layer

    def on(self, model: Any, engine: str = "auto") -> AbstractContextManager[AttentionCache]:
        """Patch a transformers model for the length of a `with` block; yields an empty cache.

        Inside the block pass the cache as `past_key_values`; `cache.new()` gives further ones.
        The model is restored on leaving, whatever happened.

        Args:
            model: to patch.
            engine: what decode queries read keys and values with: "torch", everywhere; "cpp", on
                CPUs in one pass; "triton", on GPUs in one pass; "flash", flash-attn for what it
                has an operation for and Triton for the rest; "auto", "cpp" or "triton" where they
                can work, else "torch". `cache.stats().engine` is the one in force.

        Raises:
            InvalidValue: the model, its rotary embedding, a parameter or the engine does not fit.
        """
        return patched(self, Full(), model, engine)


@dataclass(frozen=True, kw_only=True)
class Dropping(Backend):
    """Parameters of a method that drops tokens: its prompt may stay.

    The prompt then counts, and parameters at their defaults follow from what it leaves.

    Attributes:
        keep_prompt: no token of a row's prompt is dropped (arXiv 2609.03430); a prompt that leaves
            the method too few tokens is refused when it is read.
    """

    budget: int
    keep_prompt: bool = field(default=False, metadata={"left_out": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("keep_prompt", self.keep_prompt)


@dataclass(frozen=True, kw_only=True)
class Full(Backend):
    """Every query reads every earlier token: equal to transformers' own attention.

    The store is grown by doubling where DynamicCache copies all of it each step, and the keys of a
    group are not repeated.
    """

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "softmax attention over all tokens (arXiv 1706.03762)"
    layer_class = KeepAll
    budget: None = field(default=None, init=False, repr=False)
    dense_layers: int = field(default=0, init=False, repr=False)


def _listed(value: Any) -> Any:
    """As JSON gives it back, which knows no tuples."""
    return [_listed(x) for x in value] if isinstance(value, tuple) else value


def check_pages(budget: int, page: int) -> None:
    """Check that a budget is a whole number of pages, at least two."""
    check_int("page", page, 1)
    allowed = f"a multiple of page = {page}, at least two pages"
    if check_int("budget", budget, 2 * page, allowed) % page:
        raise InvalidValue("budget", budget, allowed)

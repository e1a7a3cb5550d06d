"""The base class of methods: a frozen dataclass of parameters that builds the state of a layer."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from attention.errors import (
    InvalidValue,
    check_choice,
    check_int,
    check_ints,
    check_number,
)
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
        budget: the most tokens one decode query may read, current token included; None for all. A
            list is taken for `budgets`, and their mean is the budget.
        dense_layers: first layers left dense, the model's own sliding layers among them counted.
        budgets: of every layer that holds keys, 0 where it is dense or slides; their mean without
            these is `budget`. Parameters at their defaults follow from a layer's own budget.
        pyramid: how many times the last layer's budget the first one's is; those between lie on a
            line, in whole pages, and the mean is `budget` (PyramidKV, arXiv 2406.02069).

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
    budgets: Sequence[int] | None = field(default=None, metadata={"left_out": None})
    pyramid: float | None = field(default=None, metadata={"left_out": None})

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                self._resolve(f.name, value.item())
        typed: Any = self.budget
        listed = typed if isinstance(typed, list | tuple) else self.budgets
        if listed is not None:
            numbers = check_ints("budgets", listed, 0)
            mean = sum(numbers) / max(sum(n > 0 for n in numbers), 1)
            twice = listed is typed and self.budgets is not None
            if twice or mean != (int(mean) if listed is typed else self.budget):
                allowed = "one for each layer, 0 where it has none, of which `budget` is the mean"
                raise InvalidValue("budgets", listed, allowed)
            self._resolve("budgets", numbers)
            self._resolve("budget", int(mean))
        own = next(f for f in dataclasses.fields(self) if f.name == "budget")
        if self.budget is not None or (own.init and own.default is dataclasses.MISSING):
            check_int("budget", self.budget, self.least_budget)
        if self.budget is not None and self.budget > MOST_TOKENS:
            raise InvalidValue("budget", self.budget, f"at most {MOST_TOKENS} tokens")
        check_int("dense_layers", self.dense_layers, 0)
        for name, texts in self.choices.items():
            check_choice(name, getattr(self, name), texts)
        if self.pyramid is not None:
            check_number("pyramid", self.pyramid, "a number above 0", above=0)
            if self.budget is None or self.budgets is not None:
                raise InvalidValue("pyramid", self.pyramid, "nothing but with one budget")
        self._check_numbers(2)

    def _check_numbers(self, layers: int) -> list[int]:
        """The budgets of so many layers, if each is one that the method takes."""
        for budget in sorted(set(numbers := self._numbers(layers))):
            try:
                self.of_budget(budget)
            except InvalidValue as error:
                allowed = f"budgets that fit in every layer ({error})"
                raise InvalidValue(str(self.layered), self._layering, allowed) from error
        return numbers

    @property
    def layered(self) -> str | None:
        """The parameter by which layers have budgets of their own; None where all have one."""
        return next((x for x in ("pyramid", "budgets") if getattr(self, x) is not None), None)

    @property
    def _layering(self) -> Any:
        return getattr(self, self.layered or "budget")

    def _numbers(self, layers: int) -> list[int]:
        """The budgets of so many layers, those that have one of their own, in order."""
        if self.budgets is not None or self.pyramid is None or self.budget is None:
            return [n for n in self.budgets or () if n]
        page, last = getattr(self, "page", 1), 2 * self.budget / (1 + self.pyramid)
        fall = (self.pyramid - 1) * last / max(layers - 1, 1)
        upper = [round((self.pyramid * last - i * fall) / page) * page for i in range(layers // 2)]
        # A layer has more than the mean by what its counterpart at the other end has less.
        lower = [2 * self.budget - n for n in reversed(upper)]
        return [*upper, *[self.budget] * (layers % 2), *lower]

    def layer_budgets(self, windows: Sequence[int | None]) -> dict[int, int]:
        """The budget of each layer that has one of its own, in a model of `Geometry.windows`.

        Raises:
            InvalidValue: they do not fit the model; asked before any compute.
        """
        if self.layered is None:
            return {}
        own = [i for i, w in enumerate(windows) if w is None and i >= self.dense_layers]
        have = [i in own for i in range(len(windows))]
        if self.budgets is not None and [n > 0 for n in self.budgets] != have:
            allowed = f"{len(windows)} numbers, above 0 in these layers alone: {own}"
            raise InvalidValue("budgets", self.budgets, allowed)
        budgets = dict(zip(own, self._check_numbers(len(own)), strict=True))
        chosen = [[c for c in self.choosing_layers(windows) if c <= i][-1:] or [i] for i in own]
        if any(budgets[i] != budgets[c] for i, (c,) in zip(own, chosen, strict=True)):
            allowed = "one budget from each layer that chooses for others to the next one"
            raise InvalidValue(self.layered, self._layering, allowed)
        return budgets

    def of_budget(self, budget: int, **others: Any) -> Self:
        """The same with one budget in all layers; parameters at their defaults follow from it."""
        alone = {"budgets": None, "pyramid": None, **others}
        params = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init} | alone
        kind, usual = type(self), type(self)(**params)
        defaults = [f.name for f in dataclasses.fields(self) if f.init and f.default is AUTO]
        for name in reversed(defaults):  # what follows from others comes behind them
            rest = {key: value for key, value in params.items() if key != name}
            with suppress(InvalidValue):
                params = rest if kind(**rest) == usual else params
        return kind(**params | {"budget": budget})

    @cached_property
    def _smallest(self) -> Self:
        """The same as in the layer with the smallest budget."""
        return self if self.layered is None else self.of_budget(min(self._numbers(2)))

    def _resolve(self, name: str, value: Any) -> None:
        """Put the value in force in the place of a parameter, while the backend is made."""
        object.__setattr__(self, name, value)

    @property
    def exact_until(self) -> float:
        """Tokens seen up to which this equals full attention; inf without a budget."""
        return math.inf if self._smallest.budget is None else self._smallest.budget

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
            allowed = f"layers that {self.name} acts on, here {', '.join(map(str, own))} of "
            raise InvalidValue(field, numbers, f"{allowed}{len(windows)} that hold keys")
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
        own = self.layer_budgets(geometry.windows).get(geometry.index)
        layer = (self if own is None else self.of_budget(own)).layer(geometry)
        if self.layered is not None and layer.cut_together:
            allowed = f"one budget: {self.name} drops the same tokens in all layers"
            raise InvalidValue(self.layered, self._layering, allowed)
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
            the method too few tokens is refused when it is read. Or a number: of the prompt's
            first tokens so many, as instructions are, and of these alone the above is true.
    """

    budget: int
    keep_prompt: bool | int = field(default=False, metadata={"left_out": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.keep_prompt, bool):
            # 1 is equal to True, so they would be one method.
            allowed = f"True, False, or an integer from 2 to budget - 1 = {self.budget - 1}"
            if check_int("keep_prompt", self.keep_prompt, 2, allowed) >= self.budget:
                raise InvalidValue("keep_prompt", self.keep_prompt, allowed)


@dataclass(frozen=True, kw_only=True)
class Growing(Backend):
    """Parameters of a method that chooses what it reads: more in longer rows, where wanted.

    Attributes:
        share: of the tokens that a row has seen a decode query reads this share, above 0 and below
            1, in whole pages: at least `least` tokens, at most `budget`. None for `budget` tokens.
        least: tokens, with `share` alone.
    """

    share: float | None = field(default=None, metadata={"left_out": None})
    least: int | None = field(default=None, metadata={"left_out": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is None and self.least is None:
            return
        check_number("share", self.share, "a number above 0 and below 1", above=0, below=1)
        least, most = check_int("least", self.least, 1), check_int("budget", self.budget, 1)
        if least > most:
            raise InvalidValue("least", least, f"at most budget = {most}")
        try:
            self.of_budget(least, share=None, least=None)
        except InvalidValue as error:
            raise InvalidValue("least", least, f"a budget of {self.name} ({error})") from error

    @property
    def exact_until(self) -> float:
        return super().exact_until if self.least is None else self.least


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
    budgets: None = field(default=None, init=False, repr=False)
    pyramid: None = field(default=None, init=False, repr=False)


def _listed(value: Any) -> Any:
    """As JSON gives it back, which knows no tuples."""
    return [_listed(x) for x in value] if isinstance(value, tuple) else value


def check_pages(budget: int, page: int) -> None:
    """Check that a budget is a whole number of pages, at least two."""
    check_int("page", page, 1)
    allowed = f"a multiple of page = {page}, at least two pages"
    if check_int("budget", budget, 2 * page, allowed) % page:
        raise InvalidValue("budget", budget, allowed)

"""The checks for authors: every shipped backend passes them, and each check finds its defect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from examples import BACKENDS, FIRST
from torch import Tensor

import attention
from attention.layers.evicting import Evicting
from attention.layers.layer import KeepAll, Layer
from attention.layers.paged import Paged
from attention.layers.selecting import Choice
from attention.testing import CHECKS, ContractBroken, OneLayer, check, tiny_model


def on_purpose(backend: attention.Backend) -> set[str]:
    """Checks that what reproduces others' code breaks."""
    if backend.name == "uniform":  # reads all and weighs it alike
        return {"hooks", "budget"}
    if backend.name == "noise":  # is full attention that is not what it should be
        return {"hooks", "prefill"}
    if getattr(backend, "prefill", "dense") == "reference":  # is sparse, in blocks of queries
        return {"prefill", "chunks"}
    return set()


def passes(backend: attention.Backend) -> None:
    found = check(backend, skip=on_purpose(backend))
    assert set(found) == set(CHECKS) - on_purpose(backend)
    assert all(found.values())


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_every_shipped_method_keeps_the_contract(backend: attention.Backend) -> None:
    passes(backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b not in FIRST], ids=str)
def test_every_option_keeps_the_contract(backend: attention.Backend) -> None:
    passes(backend)


def test_a_method_that_refuses_long_prompts() -> None:
    backend = attention.RaaS(budget=16, page=4)
    with pytest.raises(ContractBroken, match="keep_prompt"):
        check(backend)
    assert "12 tokens" in check(backend, longest_prompt=12)["prefill"]


# ---------------------------------------------------------------- methods with one defect each


class SoundLayer(Evicting):
    """The oldest goes."""

    def worth(self, S: int, step: Any) -> Tensor:
        return self.position.data[:, :, :S].double()


@dataclass(frozen=True, kw_only=True)
class Sound(attention.Backend):
    """Keeps the newest tokens; the methods below are this one with one thing wrong."""

    name: ClassVar[str] = "sound"
    source: ClassVar[str] = "a window, written for a test"
    layer_class = SoundLayer
    page: ClassVar[int] = 2
    budget: int = 8
    dense_layers: int = 0

    def __post_init__(self) -> None:
        attention.errors.check_int("budget", self.budget, 2)

    @property
    def exact_until(self) -> float:
        return self.budget


def of(made: type[Layer], **more: Any) -> attention.Backend:
    """`Sound` with another layer."""
    kind = type("Sound", (Sound,), {"layer_class": made, **more})
    kind.__qualname__ = "of.<locals>.Sound"
    return kind()


class Nan(SoundLayer):
    def worth(self, S: int, step: Any) -> Tensor:
        return super().worth(S, step) * float("nan")


class PerQueryHead(SoundLayer):
    def worth(self, S: int, step: Any) -> Tensor:
        return super().worth(S, step).repeat_interleave(2, dim=1)


class NoScaling(SoundLayer):
    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Any) -> Tensor:
        return super().decode(q, k, v, 1.0, step)


class NoSinks(SoundLayer):
    """Forgets the model's own sinks."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(dataclasses.replace(geometry, sink_logits=None), backend)


class SharesState(SoundLayer):
    """A copy of it is itself."""

    def __deepcopy__(self, memo: dict) -> Layer:
        return self


class SparsePrefill(SoundLayer):
    """Tokens of a prompt see the last `limit` keys only."""

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Any) -> Tensor:
        out = super().prefill(q, k, v, scaling, step)
        out[:, self.limit :] *= 0.5
        return out


class Overspends(KeepAll):
    """Keeps all and reads all."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, attention.Full())


class Understates(SoundLayer):
    def reads(self, seen: Any) -> Any:
        return np.minimum(seen, self.limit - 1)


class Cheap(SoundLayer):
    def cost(self, seen: Any) -> Any:
        return self.reads(seen)


class Weightless(SoundLayer):
    def row_bytes(self, seen: Any) -> Any:
        return super().row_bytes(seen) // 2


class MixesRows(SoundLayer):
    """The row that has seen most decides for all."""

    def worth(self, S: int, step: Any) -> Tensor:
        position = super().worth(S, step)
        return (position - position.amax((1, 2), keepdim=True) + position.amax()) % 7


class Misreports(SoundLayer):
    """Says of all rows but the first that they keep one token less."""

    def kept_positions(self, row: int, seen: int) -> Tensor:
        return super().kept_positions(row, seen)[:, bool(row) :]


class Outside(SoundLayer):
    """What it remembers of a row lies beside its state, so it stays behind when rows move."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.favourite: Tensor | None = None

    def worth(self, S: int, step: Any) -> Tensor:
        position = super().worth(S, step)
        if self.favourite is None or len(self.favourite) != len(position):
            self.favourite = self.k.data[:, :, 0, :1].sign()
        return position * self.favourite


class Leaks(SoundLayer):
    """Remembers something of every token for ever."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.log = self.slots("log", heads=1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Any) -> Tensor:
        self.log.fit(step.longest)
        return super().decode(q, k, v, scaling, step)


class WideOnly(SoundLayer):
    """Assumes one dtype."""

    def worth(self, S: int, step: Any) -> Tensor:
        wide = self.k.data.new_ones(self.geometry.D, dtype=self.geometry.wide)
        return super().worth(S, step) + 0 * (self.k.data[:, :, :S] @ wide)


class Alike(Paged):
    """Pages by mean key, per query head; sound too."""

    def summary(self, k: Tensor, held: Tensor) -> Tensor:
        return (k * held).sum(3) / held.sum(3).clamp(min=1)

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        return (q @ summaries.transpose(2, 3)).flatten(1, 2)


class TakesGarbage(Alike):
    def summary(self, k: Tensor, held: Tensor) -> Tensor:
        return k.mean(3)


class Infinite(Alike):
    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        return super().score(q, summaries) / 0


class Twice(Alike):
    def choose(self, q: Tensor, step: Any) -> Choice:
        found = super().choose(q, step)
        return Choice(found.pages[..., -1:].expand_as(found.pages).contiguous(), found.live)


class Stale(Alike):
    """Pages by their largest numbers, which grow with each key; a crop takes nothing back."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        shape = (geometry.D,)
        self.summaries = self.slots("summaries", shape, unit=self.page, fill=float("-inf"))

    def summary(self, k: Tensor, held: Tensor) -> Tensor:
        return k.masked_fill(~held, float("-inf")).amax(3)

    def notice(self, k: Tensor, step: Any) -> None:
        if not step.decode:
            super().notice(k, step)
            return
        self.summaries.fit(step.longest)
        at = step.flat(step.past // self.page, k.shape[1], self.summaries.capacity, "page")
        larger = torch.maximum(self.summaries.flat[at], k.flatten(0, 2))
        self.summaries.flat.index_copy_(0, at, larger)


class FirstChunkOnly(Alike):
    """Looks at a prompt's keys only when it is the first."""

    def notice(self, k: Tensor, step: Any) -> None:
        if step.decode or not step.past.any():
            super().notice(k, step)
        else:
            self.summaries.fit(step.longest)


class Idle(Alike):
    """Knows a row only from its first prefill on."""

    def choose(self, q: Tensor, step: Any) -> Choice:
        found = super().choose(q, step)
        if step.idle:
            found.live[1:, :, 0] = False
        return found


class Coin(SoundLayer):
    """Another one at every call."""

    def worth(self, S: int, step: Any) -> Tensor:
        return torch.rand(self.position.data[:, :, :S].shape)


DEFECTS = {
    "a name twice": ("declared", lambda: of(SoundLayer, source=""), "one line"),
    "params not plain": (
        "declared",
        lambda: of(SoundLayer, params=lambda _: {"budget": {8}}),
        "JSON",
    ),
    "no validation": ("declared", lambda: of(SoundLayer, __post_init__=lambda _: None), "budget"),
    "a layer unlike its class": (
        "declared",
        lambda: of(SoundLayer, layer=lambda self, geometry: Alike(geometry, self)),
        "layer_class",
    ),
    "nan": ("hooks", lambda: of(Nan), "nan"),
    "a worth per query head": ("hooks", lambda: of(PerQueryHead), r"expected \(2, 2, 8\)"),
    "scaling forgotten": ("hooks", lambda: of(NoScaling), "naive|softmax"),
    "sinks forgotten": ("hooks", lambda: of(NoSinks), "geometry.sink_logits, query head 0"),
    "garbage in pages": ("hooks", lambda: of(TakesGarbage), "not held"),
    "infinite scores": ("hooks", lambda: of(Infinite), "inf or nan"),
    "a page twice": ("hooks", lambda: of(Twice), "twice"),
    "exact_until too high": (
        "exact",
        lambda: of(SoundLayer, exact_until=property(lambda s: s.budget + 1)),
        "exact_until = 9, but after token 8",
    ),
    "sparse prefill": ("prefill", lambda: of(SparsePrefill), "token 8"),
    "over budget": ("budget", lambda: of(Overspends), "budget 8"),
    "reads understated": ("counts", lambda: of(Understates), "read_max = 1, the state has 2|read_"),
    "costs understated": ("counts", lambda: of(Cheap), "Layer.cost"),
    "bytes understated": ("counts", lambda: of(Weightless), "Layer.row_bytes"),
    "rows mixed": ("rows", lambda: of(MixesRows), "alone"),
    "positions misreported": ("rows", lambda: of(Misreports), "keeps or reads other positions"),
    "idle rows": ("late rows", lambda: of(Idle), "row 1"),
    "state outside slots": ("copied", lambda: of(Outside), "row"),
    "state shared by copies": ("copied", lambda: of(SharesState), "copied row"),
    "later chunks ignored": ("chunks", lambda: of(FirstChunkOnly), "chunks of 7"),
    "stale after crop": ("crop", lambda: of(Stale), "never fed"),
    "memory grows": ("memory", lambda: of(Leaks), "grew from"),
    "one dtype assumed": ("half precision", lambda: of(WideOnly), "RuntimeError"),
    "another each time": ("repeated", lambda: of(Coin), "built again"),
}


@pytest.mark.parametrize("layer", [SoundLayer, Alike])
def test_the_sound_methods_pass(layer: type[Layer]) -> None:
    found = check(of(layer))
    assert list(found) == list(CHECKS)
    assert (found["crop"] == "exact") == (layer is Alike)


@pytest.mark.parametrize(("name", "make", "says"), DEFECTS.values(), ids=DEFECTS)
def test_each_check_finds_its_defect(name: str, make: Callable, says: str) -> None:
    earlier = list(CHECKS)[: list(CHECKS).index(name)]
    with pytest.raises(ContractBroken, match=says) as caught:
        check(make(), skip=earlier)
    assert (caught.value.method, caught.value.check) == ("sound", name)
    assert f"sound fails the check {name!r}" in str(caught.value)


def test_every_check_has_a_defect_it_finds() -> None:
    assert {name for name, _, _ in DEFECTS.values()} == set(CHECKS) - {"generate"}


def test_generate_is_compared() -> None:
    backend = of(SoundLayer)
    with pytest.MonkeyPatch.context() as patch:
        wrong = torch.zeros(2, 20, dtype=torch.long)
        patch.setattr(type(tiny_model()), "generate", lambda *_, **__: wrong)
        with pytest.raises(ContractBroken, match="greedy"):
            check(backend, skip=[n for n in CHECKS if n != "generate"])


def test_a_check_that_does_not_exist_is_not_skipped() -> None:
    with pytest.raises(attention.InvalidValue, match="did you mean 'budget'"):
        check(Sound(), skip=["budgte"])


def test_one_layer_keeps_what_it_was_fed() -> None:
    one = OneLayer(attention.Window(budget=4), heads=(6, 3), rows=2)
    out = one.feed(5)
    assert out.shape == (2, 5, 6, 6)
    out = one.feed()
    assert (one.n, one.q.shape, one.k.shape) == (6, (2, 6, 6, 6), (2, 3, 6, 6))
    assert one.kept(1) == [[2, 3, 4, 5]] * 3  # the oldest leaves when the next token comes
    assert one.read(1) == [[2, 3, 4, 5]] * 3
    held, group = [2, 3, 4, 5], 4 // 2
    probs = (one.k[1, group, held] @ one.q[1, 4, -1] * 0.5).softmax(0)
    assert (out[1, 0, 4] - probs @ one.v[1, group, held]).abs().max() < 1e-12


def test_the_tiny_model_is_always_the_same_and_leaves_the_random_state() -> None:
    before = torch.random.get_rng_state()
    one, other = tiny_model(), tiny_model(dtype=torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.float(), b)

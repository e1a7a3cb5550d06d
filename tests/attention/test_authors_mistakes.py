"""What authors of methods get wrong is found with a message that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import attention
from attention.contract import Choice, Evicting, Layer, Paged, Selecting
from attention.errors import InvalidValue
from attention.testing import CHECKS, ContractBroken, OneLayer, check


@dataclass(frozen=True, kw_only=True)
class Mine(attention.Backend):
    """A method whose layer a test gives it."""

    name: ClassVar[str] = "mine"
    source: ClassVar[str] = "written for a test"
    budget: int = 8
    page: ClassVar[int] = 2


def of(layer: type[Layer], **more: Any) -> attention.Backend:
    kind = type("Mine", (Mine,), {"layer_class": layer, **more})
    kind.__qualname__ = "of.<locals>.Mine"
    return kind()


def fails(made: attention.Backend, name: str, says: str) -> None:
    with pytest.raises(ContractBroken, match=f"mine fails the check '{name}': .*{says}"):
        check(made, skip=set(CHECKS) - {name})


class Oldest(Evicting):
    def worth(self, S: int, step: Any) -> Tensor:  # noqa: ARG002
        return self.position.data[:, :, :S].double()


class Whole(Oldest):
    def worth(self, S: int, step: Any) -> Tensor:
        return super().worth(S, step).long()


class Listed(Oldest):
    def worth(self, S: int, step: Any) -> Any:  # noqa: ARG002
        return [0.0] * S


class Hiding(Oldest):
    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.counts = 3


class OtherState(Oldest):
    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.budget = 3.5


@pytest.mark.parametrize(
    ("layer", "name", "says"),
    [
        (Whole, "hooks", "worth returned torch.int64, expected floating-point"),
        (Listed, "hooks", "worth returned list, expected a tensor"),
        (Hiding, "declared", "self.counts of Hiding is the base class's"),
        (OtherState, "declared", "self.budget of OtherState is the base class's"),
    ],
)
def test_evicting(layer: type[Layer], name: str, says: str) -> None:
    fails(of(layer), name, says)


class Keeping(Oldest):
    """Adds what the newest keys of the step before are, times nothing."""

    before: ClassVar[Any] = None
    copied: ClassVar[bool] = False

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Any) -> Tensor:
        out = super().decode(q, k, v, scaling, step)
        if self.before is not None:
            out = out + 0 * self.before.mean()
        self.before = k.clone() if self.copied else k  # type: ignore[misc]
        return out


@pytest.mark.parametrize("copied", [True, False])
def test_keys_of_the_step_before_are_there_where_they_were_copied(copied: bool) -> None:
    layer = OneLayer(of(type("Copying", (Keeping,), {"copied": copied})))
    layer.feed(5)
    assert layer.feed().isfinite().all()
    assert bool(layer.feed().isfinite().all()) == copied


def test_what_a_layer_does_not_have() -> None:
    layer = OneLayer(of(Oldest)).layer
    with pytest.raises(AttributeError, match=r"Oldest has no 'backend'.*`self\.\.\.\. = backend"):
        layer.backend  # noqa: B018
    with pytest.raises(AttributeError, match=r"`self.halved = backend.halved`"):
        layer.halved  # noqa: B018
    assert not hasattr(layer, "halved")


def test_a_layer_that_does_not_begin_as_its_base_class() -> None:
    class Late(Oldest):
        def __init__(self, geometry: Any, backend: Any) -> None:
            self.half = self.geometry.D // 2
            super().__init__(geometry, backend)

    with pytest.raises(AttributeError, match=r"Late has no 'geometry' yet: call `super\(\)"):
        OneLayer(of(Late))


@pytest.mark.parametrize("wrong", [3, "yes", None])
def test_keep_prompt_is_true_or_false(wrong: object) -> None:
    with pytest.raises(InvalidValue, match=r"keep_prompt = .*True or False"):
        OneLayer(of(Oldest, keep_prompt=wrong))
    assert OneLayer(of(Oldest, keep_prompt=True)).layer.keeps_prompt


class Wider(Paged):
    """Remembers a number more of a page than there is room for."""

    def summary(self, k: Tensor, held: Tensor) -> Tensor:
        mean = (k * held).sum(3) / held.sum(3).clamp(min=1)
        return torch.cat((mean, mean[..., :1]), dim=-1)

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        return (q.sum(2, keepdim=True) @ summaries[..., :-1].transpose(2, 3)).squeeze(2)


class Roomy(Wider):
    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend, size=geometry.D + 1)


@pytest.mark.parametrize("prompt", [1, 5])
def test_a_summary_has_a_size(prompt: int) -> None:
    said = r"summary = '7 numbers a page': expected 6, or `super.*size=7\)` in Wider.__init__"
    with pytest.raises(InvalidValue, match=said):
        OneLayer(of(Wider)).feed(prompt)
    fails(of(Wider), "hooks", r"summary returned shape .*size = 6 is said by `super\(\)")
    assert check(of(Roomy))


def choosing(made: Callable[[Selecting, Tensor, Any], Any]) -> attention.Backend:
    class Chooses(Selecting):
        def __init__(self, geometry: Any, backend: Any) -> None:
            super().__init__(geometry, backend, page=backend.page)

        def choose(self, q: Tensor, step: Any) -> Any:
            return made(self, q, step)

    return of(Chooses)


def newest(layer: Selecting, _: Tensor, step: Any) -> Choice:
    """The newest pages, one set per layer."""
    last = torch.as_tensor(layer.pages(step.seen) - 1)[:, None, None]
    back = last - torch.arange(layer.quota)
    return Choice(back.where(back >= 0, last - back), back >= 0)


def test_notice_is_optional() -> None:
    assert check(choosing(newest))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda *a: newest(*a).pages, "choose = 'Tensor': expected Choice"),
        (lambda *a: newest(*a).each(lambda x: x[:, 0]), r"choose = 'Choice\(\(2, 4\) torch.int64"),
        (lambda *a: Choice(newest(*a).pages, newest(*a).pages), "which of them are read, bool"),
        (lambda *a: newest(*a).each(lambda x: x.expand(-1, 3, -1)), "H = 1 or 2 or 4"),
        (lambda *a: newest(*a).each(lambda x: x.int()), "numbers of pages, int64"),
        (
            lambda *a: Choice(newest(*a).pages, newest(*a).live & False),
            "a set in which no page is live",
        ),
    ],
)
def test_a_choice_has_a_form(made: Any, says: str) -> None:
    fails(choosing(made), "hooks", says)


def test_nothing_read_is_said() -> None:
    made = choosing(lambda *a: Choice(newest(*a).pages, newest(*a).live & False))
    fails(made, "counts", "reads no position at all")


@pytest.mark.parametrize("twins", [(("foo", "bar"),), ("budget",), (("budget",),)])
def test_twins_name_parameters(twins: Any) -> None:
    fails(of(Oldest, twins=twins), "declared", "twins = ")

"""Methods by name, by import path, and from other packages."""

from __future__ import annotations

import json
import math
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
from driving import BACKENDS, follow, model, tokens

import attention
from attention import registry
from attention.methods.sink import Sink


class Elsewhere(Sink):
    """A method of another package."""

    name: ClassVar[str] = "elsewhere"


def test_every_method_is_named_by_its_file() -> None:
    assert attention.names() == [
        "full", "h2o", "h2o_uniform", "infllm", "oracle", "quest", "raas", "random", "rkv",
        "sink", "snapkv", "tova", "window",
    ]  # fmt: skip
    for name in attention.names():
        assert attention.registry.find(name).name == name
    assert {type(b).name for b in BACKENDS} == set(attention.names())


def test_describe_gives_each_a_source() -> None:
    described = attention.describe()
    assert list(described) == attention.names()
    assert "2406.10774" in described["quest"]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_parameters_survive_json(backend: attention.Backend) -> None:
    params = json.loads(json.dumps(backend.params()))
    again = attention.get(backend.name, **params)
    assert again.params() == params
    assert again.exact_until == backend.exact_until
    assert attention.get(f"{type(backend).__module__}:{type(backend).__name__}", **params) == again


def test_full_has_no_budget() -> None:
    assert attention.Full().budget is None
    assert attention.Full().params() == {}
    assert math.isinf(attention.Full().exact_until)


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("quset", {"budget": 64}, "did you mean 'quest'"),
        ("quest", {"budgte": 64}, "did you mean 'budget'"),
        ("quest", {}, "budget"),
        ("full", {"budget": 64}, "it has none"),
        ("attention.nowhere:X", {}, "No module named"),
        ("attention:Nothing", {}, "Nothing"),
        ("attention:", {}, "importable"),
        ("attention:RowStats", {}, "subclass"),
        ("sink", {"budget": 64, "positions": "cash"}, "did you mean 'cache'"),
    ],
)
def test_what_cannot_be_named_is_refused(name: str, params: dict, says: str) -> None:
    with pytest.raises(attention.InvalidValue, match=says):
        attention.get(name, **params)


def test_entry_points_of_other_packages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("elsewhere", f"{__name__}:Elsewhere", registry.GROUP),
        EntryPoint("wrong", "json:loads", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points * (group == registry.GROUP))
    assert "elsewhere" in attention.names()
    backend = attention.get("elsewhere", budget=9)
    assert type(backend) is Elsewhere
    m = model()
    with backend.on(m) as cache:
        follow(m, cache, [tokens(12)], tokens(1, 3))
        assert cache.stats().backend == "elsewhere"
    with pytest.raises(attention.InvalidValue, match="subclass"):
        attention.get("wrong")

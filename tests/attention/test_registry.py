"""Methods by name, by import path, and from other packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from examples import BACKENDS

import attention
from attention import methods, registry
from attention.methods.sink import Sink


def test_every_method_is_named_by_its_file() -> None:
    assert attention.names() == sorted({type(b).name for b in BACKENDS})
    for name in attention.names():
        assert attention.methods.find(name).name == name


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_parameters_survive_json(backend: attention.Backend) -> None:
    params = json.loads(json.dumps(backend.params()))
    again = attention.get(backend.name, **params)
    assert again.params() == params
    assert again.exact_until == backend.exact_until
    assert attention.get(f"{type(backend).__module__}:{type(backend).__name__}", **params) == again


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


# ---------------------------------------------------------------- packages that are installed

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from attention.methods.window import Window

@dataclass(frozen=True, kw_only=True)
class Method(Window):
    name: ClassVar[str] = {name!r}
    source: ClassVar[str] = "a window of another package"
    size: int = 3
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package on the path as an installer would: its module and its metadata."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(package: str, module: str, source: str, names: str, value: str = "") -> None:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{package.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        lines = [f"{n} = {value or module + ':Method'}" for n in names.split()]
        (info / "entry_points.txt").write_text("[lil.attention]\n" + "\n".join(lines) + "\n")

    return add


def known(name: str) -> list[registry.Entry]:
    return [k for k in methods.known() if k.name == name]


def test_an_installed_method_is_known_with_its_package(install: Install) -> None:
    install("lil-new", "lil_new_one", METHOD.format(name="new"), "new")
    (entry,) = known("new")
    assert (entry.package, entry.error) == ("lil-new 1.5", None)
    assert entry.source == "a window of another package"
    assert [str(p) for p in entry.parameters] == [
        "budget",
        "dense_layers=0",
        "budgets=None",
        "pyramid=None",
        "keep_prompt=False",
        "size=3",
    ]
    assert attention.get("new", budget=4) == attention.get("lil_new_one:Method", budget=4)
    assert known("quest")[0].package == "lil-attention"


BROKEN = {
    "an import that fails": ("import nothing_of_that_name", "No module named 'nothing_of_that_na"),
    "a defect in the module": ("x = 1\nx.y", "AttributeError: .*lil_bad_.*py, line 2"),
    "a syntax error": ("def f(:", "SyntaxError"),
    "no such class": ("", "Method"),
    "no backend": ("Method = dict", "a subclass of attention.Backend"),
    "no dataclass": (
        "from attention import Backend\nclass Method(Backend): name = 'bad'",
        "dataclass",
    ),
    "another name": (METHOD.format(name="good"), "calls itself 'good'"),
    "no name": (METHOD.format(name="a,b"), "letters, digits"),
}


@pytest.mark.parametrize(("source", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_listed_and_breaks_nothing_else(
    install: Install, source: str, says: str, request: pytest.FixtureRequest
) -> None:
    module = f"lil_bad_{list(BROKEN).index(request.node.callspec.id)}"  # imported once a process
    install("lil-bad", module, source, "bad")
    (entry,) = known("bad")
    assert entry.package == "lil-bad 1.5"
    with pytest.raises(attention.InvalidValue, match=says) as refused:
        attention.get("bad", budget=4)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(str(entry.error))
    assert entry.line.startswith("broken: ")
    assert attention.get("quest", budget=64).budget == 64
    assert [k.error for k in methods.known()].count(None) == len(BACKEND_NAMES)


BACKEND_NAMES = {b.name for b in BACKENDS}


def test_a_shipped_name_means_the_shipped_method(install: Install) -> None:
    install("lil-rival", "lil_rival", METHOD.format(name="quest"), "quest")
    ours, rival = known("quest")
    assert (ours.package, ours.error) == ("lil-attention", None)
    assert rival.package == "lil-rival 1.5"
    assert "belongs to lil-attention" in str(rival.error)
    assert attention.get("quest", budget=64) == attention.Quest(budget=64)
    assert ours.line == attention.Quest.source
    # Results are stored under the name, so it cannot be had by its path either.
    with pytest.raises(
        attention.InvalidValue, match=r"name = 'quest': .* belongs to lil-attention"
    ):
        attention.get("lil_rival:Method", budget=64)


class Thawed(attention.Backend):
    """No dataclass of its own."""

    name: ClassVar[str] = "thawed"


class Unnamed(Sink):
    """Inherits a name that is another's."""


def test_classes_that_cannot_stand_for_a_name() -> None:
    with pytest.raises(attention.InvalidValue, match="frozen"):
        attention.get(f"{__name__}:Thawed")
    with pytest.raises(attention.InvalidValue, match="a name of its own"):
        attention.get(f"{__name__}:Unnamed", budget=8)
    with pytest.raises(attention.InvalidValue, match="frozen"):
        attention.get("attention:Backend")


@dataclass(frozen=True, kw_only=True)
class Split(attention.Window):
    """Two parameters that must fit."""

    name: ClassVar[str] = "split"
    sinks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sinks >= self.budget:
            raise ValueError("sinks must be below budget")


def test_a_plain_value_error_of_a_class_is_one_message() -> None:
    with pytest.raises(attention.InvalidValue) as refused:
        attention.get(f"{__name__}:Split", budget=4, sinks=5)
    message = str(refused.value)
    assert "Split(budget = 4, sinks = 5)" in message
    assert "parameters that Split takes (sinks must be below budget)" in message
    assert attention.get(f"{__name__}:Split", budget=6, sinks=5).sinks == 5

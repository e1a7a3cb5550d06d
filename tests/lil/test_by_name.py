"""Codecs, detectors and penalties by name: whatever file lies in the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from lil import detectors, penalties
from lil.compression import codecs
from lil.registry import ClassFolder

PIGEON = '''"""Not this line."""

from dataclasses import dataclass
from typing import ClassVar


class Helper:
    """Nor this one."""


@dataclass(frozen=True)
class Bird(Helper):
    """A bird.

    More.
    """

    weight: float
    colour: str = "grey"
    name: ClassVar[str] = "pigeon"
'''


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "birds_of_this_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "_nest.py").write_text("")
    (folder / "pigeon.py").write_text(PIGEON)
    monkeypatch.syspath_prepend(tmp_path)
    yield ClassFolder(folder.name, "bird")
    for module in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[module]


def test_a_file_is_all_it_takes(birds):
    assert birds.names() == ["pigeon"]
    assert birds.describe() == {"pigeon": "A bird."}
    assert vars(birds.get("pigeon", weight=0.3)) == {"weight": 0.3, "colour": "grey"}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("pidgeon", {}, "bird = 'pidgeon': expected one of pigeon; did you mean 'pigeon'"),
        ("_nest", {}, "bird = '_nest'"),
        ("pigeon", {"wait": 1}, "pigeon parameter = 'wait': .*weight, colour"),
        ("pigeon", {"weight": 1, "color": ""}, "did you mean 'colour'"),
        ("pigeon", {"colour": "white"}, "weight = None: .* pigeon has no default"),
    ],
)
def test_what_cannot_be_is_named(birds, name: str, params: dict[str, object], message: str):
    with pytest.raises(InvalidValue, match=message):
        birds.get(name, **params)


@pytest.mark.parametrize("package", [codecs, detectors, penalties])
def test_every_public_file_has_a_name_and_a_line(package):
    files = sorted(p.stem for p in Path(package.__file__).parent.glob("[!_]*.py"))
    assert package.names() == files
    assert list(package.describe()) == files
    assert all(package.describe().values())

"""`scripts/checks/house.py` counts what it says it counts."""

from __future__ import annotations

import json
from pathlib import Path

import house
import pytest

FILES = {
    "attention/__init__.py": '"""One."""\n',
    "attention/a.py": '"""Two."""\n\n# a comment\nX = """\ntext\n"""\n\n\n'
    'class A:\n    """Three."""\n',
    "attention/b.py": "from .a import A  # type: ignore[x]\n\n\n"
    "def f():\n    from attention import c\n",
    "attention/c.py": "class A:\n    pass\n\n\nclass _B:\n    pass\n",
    "lil/__init__.py": "import attention.c\n",
    "experiments/d.py": "x: dict[str, Any] = {}\n\n\ndef _g() -> dict[str, Any]: ...\n",
    "scripts/e.py": "x = 1\n",
    "tests/test_x.py": "x = 1\n\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_counted(checkout: Path) -> None:
    assert house.counts(checkout) == {
        "code lines of the packages": 14,
        "code lines of attention": 11,
        "code lines of lil": 1,
        "code lines of experiments": 2,
        "lines of the packages": 27,
        "files of the packages": 6,
        "files with one importer": 1,  # a.py, imported by b.py; c.py has two
        "class names used twice": 1,
        "public names": 3,
        "type: ignore": 1,
        "dict[str, Any] in experiments": 2,
        "code lines of scripts": 1,
        "lines of tests": 2,
        "code lines of tests": 1,
    }


def test_checkouts_stand_beside_each_other(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert house.main([str(checkout), str(checkout)]) == 0
    line = next(one for one in capfd.readouterr().out.splitlines() if one.startswith("files of"))
    assert line.split()[-2:] == ["6", "6"]
    assert house.main([str(checkout), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [house.counts(checkout)]
    with pytest.raises(SystemExit, match="2"):
        house.main([str(checkout / "lil")])

"""The count of lines of logic counts what it says; the specification's aims are met."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from documents import files

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "count_logic.py"))

SOURCE = '''"""A module
in two lines."""

import a  # counted in the file only


@decorated
class Method(Backend):
    """Parameters."""

    name: str = "x"  # the backend's class

    def layer(self):
        return MethodLayer()


class MethodLayer(Layer):
    """Its state."""

    limit = 3

    @property
    def one(
        self,
    ):
        """Not a line."""
        # Nor this.

        return call(
            1,
        )

    def two(self):
        text = """counted
        twice"""
        return text


def helper(x):
    return x
'''


def test_lines_are_counted_as_described() -> None:
    found = SCRIPT["count"](SOURCE)
    assert found.question == 3 + 3 + 1
    assert found.whole_class == 1 + 1 + (4 + 3) + (1 + 3) + 2
    assert found.file == found.whole_class + 1 + 5


@pytest.mark.parametrize(("method", "below"), [("tova", 20), ("random", 20), ("quest", 60)])
def test_the_aims_of_the_specification(method: str, below: int) -> None:
    found = SCRIPT["count"](SCRIPT["file_of"](method).read_text())
    assert 0 < found.question < below


@pytest.mark.parametrize("name", ["l2norm.py", "moba.py"])
def test_the_tutorials_methods_are_a_few_lines(name: str) -> None:
    found = SCRIPT["count"](files(ROOT / "docs" / "new_backend.md")[name])
    assert 0 < found.question <= found.whole_class < 10


def test_a_checkout_is_measured_wherever_its_files_stand(tmp_path: Path) -> None:
    for name in ("attention/tova.py", "lil/deep/budget.py", "experiments/x.py", "tests/test_x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    names = '__all__ = ["a", "_b", "helper"]\nfrom x import a, c\nd = 1\n_e: int = 2\nf: int = 3\n'
    (tmp_path / "lil" / "__init__.py").write_text(names)
    found = SCRIPT["measure"](tmp_path)
    lines = SCRIPT["count"](SOURCE).file
    assert found["lines of attention"] == found["lines of tova.py"] == lines
    assert found["lines of lil"] == lines + 5
    assert found["lines of budget.py"] == found["lines of tests"] == lines
    assert found["lines of the three"] == 3 * lines + 5
    assert found["lines of quest.py"] == 0
    assert found["modules"] == 4
    # The source defines three classes and a function.
    assert found["public names"] == 3 * len(SCRIPT["public_names"](SOURCE)) + len("adf") + 1
    columns = SCRIPT["table"]([tmp_path, tmp_path]).splitlines()
    assert columns[0].split() == [tmp_path.name] * 2
    assert columns[1].split() == ["lines", "of", "attention", str(lines), str(lines)]

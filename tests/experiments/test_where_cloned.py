"""Installed as `scripts/setup` does, the project works beside folders of its own names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

# Each starts an interpreter, some a build.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("attention", "lil", "experiments")

#: What an interpreter does with its site-packages, then the dependencies without their .pth files.
START = """
import site, sys
site.addsitedir({site!r})
sys.path.append({dependencies!r})
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what an editable install puts into site-packages; no compiler is needed."""
    project = tmp_path_factory.mktemp("project")
    for package in PACKAGES:
        (project / package).symlink_to(ROOT / package)
    (project / "README.md").symlink_to(ROOT / "README.md")
    (project / "LICENSE").symlink_to(ROOT / "LICENSE")
    text = (ROOT / "pyproject.toml").read_text()
    parts = re.split(r"\n(?=\[)", text)
    kept = [part for part in parts if not part.startswith("[[tool.setuptools.ext-modules]]")]
    (project / "pyproject.toml").write_text("\n".join(kept))
    wheels = project / "wheels"
    wheels.mkdir()
    build = f"from setuptools import build_meta as b; b.build_editable({str(wheels)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    site = project / "site"
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """A folder that holds folders with our names, and a method of one's own."""
    for package in PACKAGES:
        (tmp_path / package / "docs").mkdir(parents=True)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from attention.methods.sink import Sink\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Sink):\n"
        '    name: ClassVar[str] = "mine"\n'
    )
    return tmp_path


def _run(site: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Code in a folder, which is first on the path, as with `python -c` and `python FILE`."""
    dependencies = sysconfig.get_paths()["purelib"]
    if not Path(dependencies, "torch").exists():  # this interpreter finds them elsewhere
        import torch

        dependencies = str(Path(torch.__file__).parents[1])
    start = START.format(site=str(site), dependencies=dependencies)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", start + code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_imports_beside_folders_of_our_names(installed: Path, above: Path) -> None:
    code = "import lil, attention; print(lil.Detector.__name__, attention.Sink.__name__)"
    done = _run(installed, above, code)
    assert (done.stdout, done.stderr) == ("Detector Sink\n", "")


#: As the command starts: the folder it is run in is not on the path.
COMMAND = """
sys.path.remove("")
from experiments.cli import main
raise SystemExit(main({arguments!r}))
"""


def test_the_command_beside_folders_of_our_names(installed: Path, above: Path) -> None:
    arguments = ["sweep", "--dry-run", "--preset", "demo-small", "--backend", "full,mine:Mine"]
    done = _run(installed, above, COMMAND.format(arguments=[*arguments, "--budget", "32"]))
    assert (done.returncode, "mine" in done.stdout) == (0, True), done.stderr


def test_the_command_beside_packages_of_our_names(installed: Path, above: Path) -> None:
    for package in PACKAGES:
        (above / package / "__init__.py").write_text("raise SystemExit('another package')")
    arguments = ["list", "backends"]
    done = _run(installed, above, COMMAND.format(arguments=arguments))
    assert (done.returncode, "h2o" in done.stdout) == (0, True), done.stderr


def test_the_command_beside_them_in_an_older_install(above: Path) -> None:
    """Where a finder behind the path names our packages, a folder on the path came first."""
    finder = f"""
import importlib.machinery, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in {PACKAGES!r}:
            return importlib.machinery.PathFinder.find_spec(name, [{str(ROOT)!r}])
sys.meta_path.append(Finder)
"""
    site = above / "site"
    site.mkdir()
    done = _run(site, above, finder + COMMAND.format(arguments=["list", "detectors"]))
    assert (done.returncode, "guardian" in done.stdout) == (0, True), done.stderr

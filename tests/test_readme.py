"""Every example of the README runs, and its first screen is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


SHELL = [line for block in blocks("bash") for line in block.splitlines() if line.strip()]
#: Lines of models that others made, which have to be fetched.
REAL = [line for line in SHELL if "real_models" in line]
LIL = [line for line in SHELL if line.startswith("lil ") and line not in REAL]
SCRIPTS = [line for line in SHELL if not line.startswith("lil ")]


def test_it_is_short_and_its_first_screen_has_all_there_is_to_try() -> None:
    assert len(README.splitlines()) <= 200
    first = README[: README.index("![")]
    assert len(first.splitlines()) < 40
    for part in ("<!-- number:", "```bash\nscripts/setup", "```python\n", "```bash\nlil "):
        assert part in first


def test_the_two_commands() -> None:
    assert {"scripts/demo", "scripts/test"} < set(SCRIPTS)
    for line in SCRIPTS:
        script = ROOT / line.removeprefix("python ").split()[0]
        assert script.is_file()
        assert line.startswith("python ") or os.access(script, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()


def test_results_are_those_of_the_sweep() -> None:
    out = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "pages" / "readme_results.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, "run scripts/pages/readme_results.py"
    assert "| `h2o` |" in out.stdout


@pytest.mark.slow
@pytest.mark.parametrize("block", range(len(blocks("python"))))
def test_python_example(block: int, tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", blocks("python")[block]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip()


@pytest.mark.slow
def test_command_examples(tmp_path: Path) -> None:
    """In order and in one folder: later lines use what earlier ones wrote."""
    assert len(LIL) >= 5
    (tmp_path / "README.md").write_text(README)
    for line in LIL:
        out = subprocess.run(
            [sys.executable, "-m", "experiments.cli", *line.split()[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            check=False,
        )
        assert out.returncode == 0, f"{line}\n{out.stderr}"
        assert out.stdout.strip(), line


@pytest.mark.slow
def test_example_of_a_model_of_others(tmp_path: Path) -> None:
    """With the file where the first line has put it; without a network nothing is fetched."""
    pytest.importorskip("gguf", reason="needs the package gguf")
    pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    assert REAL[0] == "scripts/real_models smollm2"
    if not Path(platformdirs.user_cache_dir("lil"), "gguf", "smollm2.gguf").is_file():
        pytest.skip("needs smollm2.gguf (scripts/real_models)")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    there = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    out = subprocess.run(
        ["bash", "-ec", "\n".join(REAL)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **there, "PYTHON": sys.executable},
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert "h2o" in out.stdout
    assert len(list(tmp_path.glob("lil-out/smollm2/traces/*"))) > 0

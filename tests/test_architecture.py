"""The tree explains the architecture: imports go one way, importing changes nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("attention", "lil", "experiments")
TOP_LEVEL = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "lil",
    "attention",
    "experiments",
    "tests",
    "scripts",
    "docs",
}


def imported(source: str) -> set[str]:
    """Top-level packages a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_imports_go_one_way(layer: int) -> None:
    modules = list((ROOT / LAYERS[layer]).rglob("*.py"))
    assert modules
    above = set(LAYERS[layer + 1 :]) | {"tests", "scripts"}
    wrong = {str(m): imported(m.read_text()) & above for m in modules}
    assert not {m: names for m, names in wrong.items() if names}


def test_imported_finds_what_it_should() -> None:
    source = "import a.b\nfrom c.d import e\ndef f():\n    import g\nfrom . import h"
    assert imported(source) == {"a", "c", "g"}


def test_top_level_is_fixed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {n for n in names if not n.startswith(".")} <= TOP_LEVEL


def test_importing_changes_nothing() -> None:
    """No random state, thread count, default type, registry or file is touched by an import."""
    code = """
import json, os, torch
from transformers import AttentionInterface
def state():
    return [torch.initial_seed(), torch.get_num_threads(), str(torch.get_default_dtype()),
            torch.is_grad_enabled(), sorted(AttentionInterface().valid_keys()),
            sorted(os.listdir(".")), dict(os.environ)]
before = state()
import attention, lil, experiments.cli, experiments.sweep.sweep
for package in (attention, lil):
    for name in package.__all__:
        getattr(package, name)
print(json.dumps(before == state()))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "true"


@pytest.mark.parametrize("noun", ["sweep", "run", "replay", "report", "curve", "list", "bench"])
def test_help_does_not_wait_for_torch(noun: str) -> None:
    code = (
        "import sys\n"
        "from experiments.cli import main\n"
        "try:\n"
        f"    main([{noun!r}, '--help'])\n"
        "except SystemExit as left:\n"
        "    assert left.code == 0\n"
        "slow = {'torch', 'transformers', 'scipy.stats'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["attention", "lil", "lil.chopper"])
def test_lazy_names_are_there(package: str) -> None:
    module = importlib.import_module(package)
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text())
    declared = [a.asname for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names]
    listed = [ast.literal_eval(n.value) for n in stub.body if isinstance(n, ast.Assign)]
    assert sorted(listed[0]) == sorted(map(str, declared))
    assert sorted(module.__all__) == sorted(listed[0])
    assert set(listed[0]) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense

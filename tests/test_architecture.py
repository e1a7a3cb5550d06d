"""The tree keeps its shape: no import cycle, a fixed top level, imports without side effects.

The order of the packages and of their layers is checked by `lint-imports`.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("attention", "lil", "experiments")
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


def test_no_module_imports_itself_indirectly() -> None:
    """Packages and their own modules included, which `acyclic_siblings` does not compare."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 100
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(arrows).prepare()


def test_methods_import_the_public_contract_alone() -> None:
    """As methods that do not ship have to."""
    graph = grimp.build_graph("attention", exclude_type_checking_imports=False, cache_dir=None)
    methods = graph.find_descendants("attention.methods")
    assert len(methods) > 12
    other_imports = {
        (method, imported)
        for method in methods
        for imported in graph.find_modules_directly_imported_by(method)
        if imported != "attention.contract" and imported not in methods
    }
    assert not other_imports


def test_top_level_is_fixed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {n for n in names if not n.startswith(".")} <= TOP_LEVEL


@pytest.mark.slow
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


def test_help_does_not_wait_for_torch() -> None:
    code = """
import sys
from experiments.cli import main
main([])
heavy = {"torch", "transformers", "pandas", "matplotlib", "scipy"} & set(sys.modules)
assert not heavy, heavy
for command in ("sweep", "run", "replay", "report", "curve", "list", "bench", "eval"):
    try:
        main([command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
    slow = {"torch", "transformers", "scipy.stats"} & set(sys.modules)
    assert not slow, (command, slow)
"""
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

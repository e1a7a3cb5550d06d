"""The tree explains the architecture: layers hold, rooms are small, importing changes nothing."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("attention", "lil", "experiments")
ROOMS = sorted(
    {module.parent.relative_to(ROOT) for name in PACKAGES for module in (ROOT / name).rglob("*.py")}
)
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


def contracts(root: Path) -> subprocess.CompletedProcess[str]:
    """What the import checker says of a tree about the layers pyproject.toml declares."""
    code = "from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--no-logo"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_keep_the_declared_layers() -> None:
    done = contracts(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_type_is_an_import_too(tmp_path: Path) -> None:
    """Two imports that nothing runs: up from one package to the next, and between two methods."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    for module, wrong in (("errors", "lil.trace"), ("methods/tova", "attention.methods.h2o")):
        with (tmp_path / "attention" / f"{module}.py").open("a") as file:
            file.write(
                f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {wrong}\n"
            )
    said = " ".join(contracts(tmp_path).stdout.split())
    assert "The three packages import one way BROKEN" in said
    assert "attention.methods.tova is not allowed to import attention.methods.h2o" in said


def test_no_module_imports_itself_by_a_detour() -> None:
    """Between a package and its own modules too, which are no siblings."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 100
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(arrows).prepare()


def test_methods_import_what_their_authors_are_offered() -> None:
    """Through `attention.contract`, as methods that do not ship have to."""
    graph = grimp.build_graph("attention", exclude_type_checking_imports=False, cache_dir=None)
    methods = graph.find_descendants("attention.methods")
    assert len(methods) > 12
    past_the_door = {
        (method, imported)
        for method in methods
        for imported in graph.find_modules_directly_imported_by(method)
        if imported != "attention.contract" and imported not in methods
    }
    assert not past_the_door


# What users name in vLLM and in SGLang, and what each of vLLM's two runners is given.
FOR_EACH_SERVER = {
    "DRYPenalty",
    "LZPenalty",
    "PenaltyProcessor",
    "PresenceWindowPenalty",
    "StopOn",
    "StoppingProcessor",
}


def test_a_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for package in PACKAGES:
        for module in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(module.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(module.relative_to(ROOT)))
    assert len(places) > 100
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert shared.keys() == FOR_EACH_SERVER, shared
    for name in FOR_EACH_SERVER:
        beside = [module for module in shared[name] if not module.startswith("lil/serving/")]
        assert len(beside) <= 1, beside


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_a_room_is_small_and_says_who_lives_there(room: Path) -> None:
    assert len(list((ROOT / room).glob("*.py"))) <= 15
    docstring = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
    assert docstring
    assert docstring.splitlines()[0].endswith(".")


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
for noun in ("sweep", "run", "replay", "report", "curve", "list", "bench", "eval"):
    try:
        main([noun, "--help"])
    except SystemExit as left:
        assert left.code == 0
    slow = {"torch", "transformers", "scipy.stats"} & set(sys.modules)
    assert not slow, (noun, slow)
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

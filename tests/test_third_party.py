"""A package of somebody else, installed for real: its backend is a backend like any other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tests" / "third_party" / "lil-l2norm"

Lil = Callable[..., subprocess.CompletedProcess[str]]


def test_the_method_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    from attention.testing import check

    monkeypatch.syspath_prepend(PACKAGE)
    import l2norm

    results = check(l2norm.L2Norm(budget=16))
    assert results["memory"] == "keeps 15 of 129 tokens in constant memory"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package, without network."""
    folder = tmp_path_factory.mktemp("third_party")
    source = folder / "source"
    shutil.copytree(
        PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg*")
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def lil(site: Path, tmp_path: Path) -> Lil:
    """`lil`, where the package is installed; run in an empty folder."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", "experiments.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **env},
            check=False,
        )

    return run


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_it_is_listed_with_its_package_and_runs_by_name(lil: Lil) -> None:
    backends = _json(lil("list", "backends", "--json"))["backends"]
    (entry,) = [b for b in backends if b["name"] == "l2norm"]
    assert (entry["package"], entry["error"]) == ("lil-l2norm 0.1", None)
    assert [p["name"] for p in entry["parameters"]] == ["budget", "dense_layers", "keep_prompt"]

    command = ["run", "--backend", "l2norm", "--budget", "64", "--limit", "1", "--json"]
    command += ["--max-new-tokens", "12", "--set", "backend_params.l2norm.dense_layers=1"]
    document = _json(lil(*command))
    assert document["backend"] == {"name": "l2norm", "budget": 64, "dense_layers": 1}
    (sample,) = document["samples"]
    assert sample["keys_read_max"] == 64

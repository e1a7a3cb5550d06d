"""Full disks and read-only stores, real ones: one message, exit code 2, nothing lost or torn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.cli import main
from experiments.store.store import Store

SMALL = Path(__file__).parent / "data" / "small"

pytestmark = pytest.mark.slow


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Lil = Callable[..., Done]


def _mounted(target: Path, *options: str) -> None:
    target.mkdir()
    done = subprocess.run(["mount", *options, str(target)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount is refused here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty disk of so many bytes."""
    if shutil.which("mount") is None:
        pytest.skip("no mount here")
    target = tmp_path / "disk"
    _mounted(target, "-t", "tmpfs", "-o", f"size={request.param}", "none")
    yield target
    subprocess.run(["umount", str(target)], check=True)


@pytest.fixture
def readonly(tmp_path: Path) -> Iterator[Path]:
    """A finished store that cannot be written to."""
    if shutil.which("mount") is None:
        pytest.skip("no mount here")
    store, target = tmp_path / "store", tmp_path / "readonly"
    shutil.copytree(SMALL, store)
    _mounted(target, "--bind", str(store))
    try:
        changed = ["mount", "-o", "remount,ro,bind", str(target)]
        done = subprocess.run(changed, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mount is refused here: {done.stderr.strip()}")
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


@pytest.fixture
def lil(capfd: pytest.CaptureFixture[str]) -> Lil:
    """Runs a command here: a traceback is an exception, which fails the test."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capfd.readouterr())

    return run


def _refused(done: Done, *words: str) -> None:
    """Exit code 2, one message with these words, and no other."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    messages = [line for line in done.stderr.splitlines() if line.startswith("lil: error: ")]
    assert len(messages) == 1, done.stderr
    for word in words:
        assert word in messages[0]


def _files(folder: Path) -> dict[str, bytes]:
    """Every file but those of the cache, which is written where it can be."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "cache"
    }


def _whole(store: Path) -> int:
    """Runs of a store in which nothing is torn, twice, or left over."""
    opened = Store(store)
    assert opened.notices == []
    assert opened.stored() == len(opened)
    assert {path.name for path in store.rglob(".*")} <= {".writer.lock", ".gitignore"}
    return len(opened)


@pytest.mark.parametrize("disk", ["8k", "60k", "300k"], indirect=True)
def test_a_sweep_on_a_disk_that_fills_up(
    disk: Path, tiny_model: Path, tmp_path: Path, lil: Lil
) -> None:
    command = ["sweep", "--preset", "demo-small", "--model", tiny_model, "--dataset", "easy"]
    command += ["--limit", "4", "--max-new-tokens", "60", "--batch-size", "4"]
    done = lil(*command, "--out", disk / "store")
    _refused(done, "space left")
    kept = _whole(disk / "store") if (disk / "store").exists() else 0
    # What was decoded is there, and a larger disk goes on from it.
    larger = tmp_path / "larger"
    if kept:
        shutil.copytree(disk / "store", larger)
    again = lil(*command, "--out", larger, "--no-figures", "--json")
    assert again.returncode == 0, again.stderr
    counts = json.loads(again.stdout)["manifest"]["counts"]
    assert counts["stored_before"] == kept
    assert _whole(larger) == counts["runs"] == 36
    if disk.stat().st_size and _size(disk) >= 300_000:
        assert kept == 36  # there was room for all but the figures


def _size(disk: Path) -> int:
    told = os.statvfs(disk)
    return told.f_frsize * told.f_blocks


def test_a_store_that_is_read_only(readonly: Path, tmp_path: Path, lil: Lil) -> None:
    before = _files(readonly)
    told = lil("report", readonly)
    _refused(told, "figures", "page")
    assert "Table 1" in told.stdout  # all but the pictures
    for command in (
        ["report", readonly, "--figures", tmp_path / "figures", "--no-page"],
        ["report", readonly, "--no-figures", "--no-page", "--csv", tmp_path / "samples.csv"],
        ["replay", readonly],
        ["curve", f"{readonly}:{next(iter(Store(readonly))).id}"],
    ):
        done = lil(*command)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert any((tmp_path / "figures").iterdir())
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 24
    sweep = ["sweep", "--preset", "demo-small", "--limit", "4", "--out", readonly]
    _refused(lil(*sweep), "a folder that can be written")
    assert _files(readonly) == before

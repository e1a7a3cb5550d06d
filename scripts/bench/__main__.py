"""One door to the benchmarks, and all tables of docs/results/performance.md by one command.

    python scripts/bench                          # what there is
    python scripts/bench step --batches 1,32      # one of them, with its own flags
    python scripts/bench all --into found         # all, each to a file, and then the page

`all` goes on where it was stopped: a part whose file is there already is not measured again, and
one that fails is named at the end. It takes two hours on two cores, which nothing else should use.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
EVICTING = "sink,h2o,tova,snapkv,rkv,raas"

#: A program and what it shows.
PROGRAMS = {
    "step": ("step_speed.py", "where the time of a step goes: model, reading, state, loop"),
    "compiled": ("compiled_step.py", "a step compiled and as it is, in turns"),
    "gguf": ("gguf_speed.py", "a model in a GGUF file beside transformers, vLLM and llama.cpp"),
    "attention": ("attention_speed.py", "one layer of an 8B model beside transformers'"),
    "peers": ("throughput.py", "tokens a second beside transformers and vLLM"),
    "model": ("model_speed.py", "a step of a whole model of random weights"),
    "penalty": ("penalty_speed.py", "penalties beside others' and beside plain decoding"),
    "lz": ("lz_rows_speed.py", "the LZ penalty of many rows, torch beside C++"),
    "detectors": ("detector_cost.py", "what detectors cost a step"),
    "meter": ("meter_speed.py", "compression meters beside zlib anew"),
}

#: The page's parts, by the program and the flags that make each.
PARTS = {
    "step": "step --threads 2 --batches 1,32",
    "compiled": "compiled",
    "compiled-smollm2": "compiled --model smollm2-135m --threads 2 --batches 1,16 "
    "--backends full,h2o,quest --steps 30",
    "compiled-smollm2-bf16": "compiled --model smollm2-135m --threads 2 --batches 1,16 "
    "--backends full,h2o,quest --steps 30 --dtype bfloat16",
    "compiled-qwen": "compiled --model qwen2-0.5b --threads 2 --batches 1,16 "
    "--backends full,h2o,quest --steps 20",
    "compiled-qwen-bf16": "compiled --model qwen2-0.5b --threads 2 --batches 1,16 "
    "--backends full,h2o,quest --steps 20 --dtype bfloat16",
    "attention": "attention --contexts 1024,2048,8192,32768",
    "long": f"attention --backends full,{EVICTING} --batches 1 --contexts 1024,65536 --steps 256",
    "peers": "peers --no-continuous",
    "model": "model",
    "gguf-smollm2": "gguf smollm2",
    "gguf-qwen": "gguf qwen-coder-0.5b",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit code of what it ran."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given and given[0] in PROGRAMS:
        return _run([str(HERE / PROGRAMS[given[0]][0]), *given[1:]])
    parser = argparse.ArgumentParser(
        prog="python scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:12}{what}" for name, (_, what) in PROGRAMS.items()),
    )
    parser.add_argument("which", nargs="?", choices=[*PROGRAMS, "all"], help="with its own flags")
    parser.add_argument("--into", type=Path, help="all: the folder of what is found")
    parser.add_argument("--parts", help=f"all: some of {', '.join([*PARTS, 'serving', 'sweep'])}")
    args = parser.parse_args(given)
    if args.which is None:
        parser.print_help()
        return 0
    if args.into is None:
        parser.error("all: say --into FOLDER")
    lines = _lines(args.into)
    parts = [*lines] if args.parts is None else args.parts.split(",")
    unknown = sorted({*parts} - {*lines})
    if unknown:
        parser.error(f"--parts {unknown[0]}: expected some of {', '.join(lines)}")
    return _all(args.into, {part: lines[part] for part in parts})


def _lines(into: Path) -> dict[str, list[list[str]]]:
    """The commands of each part, without Python; the last one prints what was found."""
    lines = {}
    for part, line in PARTS.items():
        name, *flags = shlex.split(line)
        lines[part] = [[sys.executable, str(HERE / PROGRAMS[name][0]), *flags, "--json"]]
    measuring = ROOT / "scripts" / "measuring"
    lines["serving"] = [[str(VLLM), str(measuring / "serving_throughput.py"), "--json"]]
    store = str(into / "demo")
    sweep = ["-m", "experiments.cli", "sweep", "--workers", "2", "--no-figures", "--no-page"]
    lines["sweep"] = [
        [sys.executable, *sweep, "--out", store],
        [sys.executable, str(measuring / "sweep_speed.py"), store],
    ]
    return lines


def _all(into: Path, lines: dict[str, list[list[str]]]) -> int:
    """Measure what is not there yet, then write the page; 1 if something failed."""
    into.mkdir(parents=True, exist_ok=True)
    failed = []
    for part, commands in lines.items():
        file = into / f"{part}.json"
        if file.exists():
            continue
        print(f"{part}: {shlex.join(commands[-1][1:])}", flush=True)
        done = None
        for command in commands:
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, check=True
                )
            except (subprocess.CalledProcessError, OSError) as error:
                failed.append(f"{part}: {error}")
                break
        else:
            assert done is not None
            try:
                json.loads(done.stdout)
            except ValueError as error:
                failed.append(f"{part}: it printed no document: {error}")
                continue
            new = file.with_suffix(".new")
            new.write_bytes(done.stdout)
            new.replace(file)
    found = [str(into / f"{part}.json") for part in lines if (into / f"{part}.json").exists()]
    page = ROOT / "scripts" / "pages" / "performance_page.py"
    if found:
        subprocess.run(
            [sys.executable, str(page), "--take", *found], stdout=subprocess.DEVNULL, check=True
        )
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return int(bool(failed))


def _run(command: list[str]) -> int:
    return subprocess.run([sys.executable, *command], env=_environment(), check=False).returncode


def _environment() -> dict[str, str]:
    """The checkout that this door belongs to, wherever it is opened."""
    more = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *([more] if more else [])])}


if __name__ == "__main__":
    sys.exit(main())

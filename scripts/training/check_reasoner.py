"""Print the reasoner's thresholds, each with what the committed checkpoint reaches.

    python scripts/training/check_reasoner.py          # 200 test problems a level, 100 edits a kind
    python scripts/training/check_reasoner.py --quick  # a sample

Exit code 1 if a threshold is missed. Greedy decoding, full attention, float32; --out keeps the
texts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from reasoner_training import thresholds
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.reasoner import checkpoint_path

ACCURACY = {"easy": 0.98, "medium": 0.97, "hard": 0.92}
ENDED, SAME_IN_BF16, FOUND, HARD_TOKENS = 0.97, 0.9, 0.8, 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default=checkpoint_path())
    parser.add_argument("--quick", action="store_true", help="20 problems and 20 edits instead")
    parser.add_argument("--out", type=Path, help="folder for the texts, as JSON")
    args = parser.parse_args()
    count, edits = (20, 20) if args.quick else (200, 100)
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    console = Console()
    table = Table(title=f"Reasoner, {count} test problems a level, {edits} edits a kind")
    for name in ("figure", "reached", "at least", "met"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    missed, texts, chains = 0, {}, {}

    def add(figure: str, value: float, bound: float, most: bool = False) -> None:
        nonlocal missed
        met = value <= bound if most else value >= bound
        missed += not met
        sign = "at most " if most else ""
        table.add_row(figure, f"{value:.3f}", f"{sign}{bound:g}", "yes" if met else "NO")

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("decoding", total=None)

        def told(what: str):
            return lambda done: progress.update(task, description=f"{what}: {done:,} tokens")

        for figures, traces in thresholds.levels(model, tokenizer, count, told("test problems")):
            level = figures.level
            add(f"{level}: accuracy", figures.accuracy, ACCURACY[level])
            add(f"{level}: ended by eos", figures.ended, ENDED)
            add(f"{level}: same text in bf16", figures.same_in_bf16, SAME_IN_BF16)
            if level == "hard":
                add("hard: mean tokens", figures.mean_tokens, HARD_TOKENS, most=True)
            else:
                table.add_row(f"{level}: mean tokens", f"{figures.mean_tokens:.0f}", "", "")
            chains[level] = traces
            texts[level] = [trace.text for trace in traces]
        for kind in thresholds.KINDS:
            share, cases = thresholds.found(
                model, tokenizer, kind, edits, chains, told(f"wrong {kind}")
            )
            add(f"wrong {kind} found", share, FOUND)
            texts[kind] = [
                {"chain": e.chain, "name": e.name, "then": t, "found": thresholds.rejected(e, t)}
                for e, t in cases
            ]
    console.print(table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "reasoner.json").write_text(json.dumps(texts, indent=1))
    console.print(f"{missed} threshold(s) missed" if missed else "all thresholds met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether a GPU decodes what the CPU does: whole sweeps of the shipped reasoner, run by run.

    python scripts/checks/check_devices.py           # 32 problems, five backends, on cuda and cpu
    python scripts/checks/check_devices.py --quick   # 8 problems

Float32, greedy, every detector of the preset; a run may part where rounding decides between two
tokens of nearly the same score, which `compare_stores.py` tells from a mistake. Then full
attention's text with drafts under quest, in float64: all tokens have to be the same. Exit code 1
if something differs that rounding cannot explain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
BACKENDS = "full,sink(budget=64),h2o(budget=64),quest(budget=64),infllm(budget=128)"


def swept(folder: Path, device: str, problems: int) -> int:
    """Tokens of a sweep that is stored there.

    Raises:
        RuntimeError: it failed.
    """
    command = [
        *(sys.executable, "-m", "experiments.cli", "sweep", "--preset", "demo"),
        *("--dataset", "easy", "--limit", str(problems), "--backend", BACKENDS, "--null", "none"),
        *("--device", device, "--out", str(folder)),
        *("--no-figures", "--no-page", "--json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{device}: {done.stderr[-2000:]}")
    return round(sum(row["n"] * row["mean_tokens"] for row in json.loads(done.stdout)["rows"]))


def drafted(device: str, problems: int) -> tuple[int, int]:
    """Texts with drafts that are full attention's, and how many there were."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import attention
    import lil
    from experiments.reasoner import checkpoint_path, problem

    path = checkpoint_path()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = [problem("easy", "study", at).prompt for at in range(problems)]
    full = lil.decode(model, tokenizer, prompts, max_new_tokens=200)
    backend = attention.get("quest", budget=32)
    with_drafts = lil.decode(
        model, tokenizer, prompts, backend=backend, max_new_tokens=200, speculate=4
    )
    pairs = zip(full, with_drafts, strict=True)
    return sum(one.new_ids == other.new_ids for one, other in pairs), len(full)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="beside the CPU (cuda)")
    parser.add_argument("--quick", action="store_true", help="8 problems instead of 32")
    args = parser.parse_args(argv)
    problems = 8 if args.quick else 32
    import compare_stores

    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / name for name in ("cpu", "other")]
        for store, device in zip(stores, ("cpu", args.device), strict=True):
            print(f"{device}: {swept(store, device, problems):,} tokens")
        wrong = compare_stores.main([*map(str, stores)])
    same, texts = drafted(args.device, problems)
    print(f"with drafts: {same} of {texts} texts are full attention's")
    return int(bool(wrong) or same < texts)


if __name__ == "__main__":
    sys.exit(main())

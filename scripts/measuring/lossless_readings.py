"""What drafts under sparse attention spare, and how many full attention keeps.

    python scripts/measuring/lossless_readings.py > FILE
    python scripts/pages/lossless_page.py --take spared FILE
    python scripts/pages/lossless_page.py                  # the table of docs/lossless.md

The shipped reasoner in float64, greedy, on problems of the level `hard`; the output has to be full
attention's, token for token. Keys are counted, seconds are not taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

CELLS = (("quest", 64), ("quest", 128), ("quest", 256), ("infllm", 384), ("h2o", 384),
         ("h2o", 768), ("sink", 512), ("sink", 1024), ("oracle", 16), ("oracle", 64))  # fmt: skip
DRAFTS = (4, 12)
Row = dict[str, Any]


def readings(problems: int, tokens: int) -> Iterator[Row]:
    """A row for each backend, budget and number of drafts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import attention
    import lil
    from experiments.grid import models
    from experiments.reasoner import checkpoint_path, problem

    models.quiet_transformers()
    model = AutoModelForCausalLM.from_pretrained(checkpoint_path(), dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    prompts = [problem("hard", "study", at).prompt for at in range(problems)]
    full = lil.decode(model, tokenizer, prompts, max_new_tokens=tokens)
    written = sum(one.tokens - 1 for one in full)
    whole = sum(one.checks[-1].keys_read for one in full)
    for name, budget in CELLS:
        backend = attention.get(name, budget=budget)
        for drafts in DRAFTS:
            traces = lil.decode(
                model, tokenizer, prompts, backend=backend, max_new_tokens=tokens, speculate=drafts
            )
            counts = [one.speculation or {} for one in traces]
            kept, refused, rounds, drafted = (
                sum(one.get(key, 0) for one in counts)
                for key in ("accepted", "rejected", "rounds", "drafted")
            )
            yield {
                "backend": name, "budget": budget, "drafts": drafts, "problems": problems,
                "same": sum(a.new_ids == b.new_ids for a, b in zip(traces, full, strict=True)),
                "accepted": kept, "looked_at": kept + refused, "tokens": written,
                "keys": sum(one.checks[-1].keys_read for one in traces) / whole,
                "checks": rounds / written, "steps": drafted / written,
            }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=2000)
    args = parser.parse_args(argv)
    rows = readings(args.problems, args.max_new_tokens)
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Lossless decoding over many prompts: full attention's tokens, whatever drafts them.

    python scripts/checks/check_lossless.py                  # 96 prompts, all cells
    python scripts/checks/check_lossless.py --prompts 8 --only quest

The shipped reasoner in float64, greedy, on the first problems of three levels: methods at three
budgets, drafts of 2, 4, 8 and 16 tokens. Then draws: of a model of random weights at temperature 1
the third token behind one prompt is drawn 100,000 times with drafts and its counts are held against
the probabilities that full attention computes, by chi-square. Exit code 1 where a text differs or
chi-square gives less than one in 1,000.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import attention
import lil

CELLS = {
    "quest": (32, 64, 128), "infllm": (192, 256, 384), "oracle": (8, 32, 128),
    "h2o": (128, 256, 384), "sink": (128, 256, 384), "window": (64, 128, 256),
}  # fmt: skip
DRAFTS = (2, 4, 8, 16)
LEVELS = ("easy", "medium", "hard")
DRAWS, FEWEST, CHANCE = 100_000, 5, 1e-3


def texts(prompts: int, tokens: int, only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """A row for each method, budget and number of drafts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from experiments.grid import models
    from experiments.reasoner import checkpoint_path, problem

    models.quiet_transformers()
    model = AutoModelForCausalLM.from_pretrained(checkpoint_path(), dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    asked = [problem(LEVELS[at % len(LEVELS)], "study", at // len(LEVELS)).prompt
             for at in range(prompts)]  # fmt: skip
    full = lil.decode(model, tokenizer, asked, max_new_tokens=tokens)
    for name, budgets in CELLS.items():
        if only and name not in only:
            continue
        for budget in budgets:
            backend = attention.get(name, budget=budget)
            for drafts in DRAFTS:
                found = lil.decode(
                    model, tokenizer, asked, backend=backend, speculate=drafts,
                    max_new_tokens=tokens,
                )  # fmt: skip
                counts = [one.speculation or {} for one in found]
                kept, refused = (
                    sum(one.get(key, 0) for one in counts) for key in ("accepted", "rejected")
                )
                yield {
                    "backend": name, "budget": budget, "drafts": drafts, "prompts": prompts,
                    "same": sum(a.new_ids == b.new_ids for a, b in zip(found, full, strict=True)),
                    "tokens": sum(one.tokens for one in found), "kept": kept, "refused": refused,
                }  # fmt: skip


def draws(count: int, name: str, **parameters: Any) -> dict[str, Any]:
    """Counts of a drawn token beside its probabilities under full attention.

    The first two tokens are not looked at: the third one's probabilities are summed over all that
    may stand before it.
    """
    from scipy.stats import chisquare
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from experiments.reasoner import checkpoint_path

    words = 16
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=words, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.6,
        eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(torch.float64).eval()
    model.generation_config.eos_token_id = None
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    tokenizer.eos_token = None  # every text is as long as its cap
    prompt = [*np.random.default_rng(1).integers(0, words, 40).tolist()]
    found = lil.decode(
        model, tokenizer, [lil.Request(prompt, max_new_tokens=3)] * count, temperature=1.0,
        backend=attention.get(name, **parameters), speculate=2, batch_size=512, seed=3,
        check_every=100,
        token_bytes=[b"%d " % at for at in range(words)],
    )  # fmt: skip
    counts = np.bincount([one.new_ids[2] for one in found], minlength=words)
    before = [[*prompt, a, b] for a in range(words) for b in range(words)]
    with torch.inference_mode():
        shares = torch.softmax(model(torch.tensor(before)).logits, dim=-1)
    first = shares[0, len(prompt) - 1]
    second = shares[:, len(prompt)]
    third = shares[:, len(prompt) + 1].view(words, words, words)
    path = first[:, None] * second.view(words, words, words)[:, 0]
    expected = torch.einsum("ab,abc->c", path, third).numpy() * count
    rare = expected < FEWEST
    told, due = ([*each[~rare], each[rare].sum()] if rare.any() else each
                 for each in (counts, expected))  # fmt: skip
    kept, refused = (sum(one.speculation[key] for one in found if one.speculation)
                     for key in ("accepted", "rejected"))  # fmt: skip
    return {"backend": name, "draws": count, "p": float(chisquare(told, due).pvalue),
            "kept": kept, "refused": refused}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--only", nargs="*", choices=sorted(CELLS))
    args = parser.parse_args(argv)
    failed = 0
    for row in texts(args.prompts, args.max_new_tokens, args.only):
        failed += row["same"] != row["prompts"]
        print(json.dumps(row), flush=True)
    for name, parameters in (("quest", {"budget": 8, "page": 4, "dense_layers": 0}),
                             ("h2o", {"budget": 8}), ("oracle", {"budget": 4})):  # fmt: skip
        if args.draws and (not args.only or name in args.only):
            one = draws(args.draws, name, **parameters)
            failed += one["p"] < CHANCE
            print(json.dumps(one), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

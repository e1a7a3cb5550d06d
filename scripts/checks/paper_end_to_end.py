"""The grid of the paper from end to end, with tiny random models in place of the paper's three.

    python scripts/checks/paper_end_to_end.py --data FOLDER [--problems 5] [--max-new-tokens 1200]

Makes a Qwen2, a Llama and a Qwen2-MoE of a few thousand random weights, sweeps the preset `paper`
with them over copies of the three public data sets, and checks what must hold of any model: every
run is stored, no step read more keys than its budget, a budget above every length gives full
attention's tokens, and the same sweep again decodes nothing. Their answers are wrong; what is
looked at is the machinery.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.grid.config import Config
from experiments.grid.presets import load
from experiments.store.samples.sample import Sample
from experiments.store.study import Study
from experiments.sweep import sweep

sys.path.append(str(Path(__file__).parents[1] / "training"))  # where its tokenizer is made

FILES = ("gsm8k_test.jsonl", "math500.jsonl", "aime_1983_2024.jsonl")


def save_models(folder: Path) -> tuple[str, ...]:
    """Write the three models, each with a tokenizer, the two Qwens with a chat template."""
    import torch
    from reasoner_training.tokenizer import build_tokenizer
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
    )

    tokenizer = build_tokenizer()
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16384,
        "initializer_range": 0.15,  # at the default attention is flat and nothing depends on it
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    made = {
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**sizes)),
        "llama": (LlamaForCausalLM, LlamaConfig(**sizes)),
        "qwen2-moe": (
            Qwen2MoeForCausalLM,
            Qwen2MoeConfig(**sizes, **experts, shared_expert_intermediate_size=24),
        ),
    }
    for seed, (name, (kind, config)) in enumerate(made.items()):
        torch.manual_seed(seed)
        kind(config).save_pretrained(folder / name)
        tokenizer.chat_template = (
            None if name == "llama" else "{% for m in messages %}{{ m.content }}\n{% endfor %}"
        )
        tokenizer.save_pretrained(folder / name)
    return tuple(str(folder / name) for name in made)


def configured(
    models: Sequence[str], data: Path, problems: int, tokens: int, **more: Any
) -> Config:
    """The preset `paper` with these models on the first problems of each file."""
    values = {
        "models": list(models),
        "datasets": [str(data / name) for name in FILES],
        "limit": problems,
        "max_new_tokens": tokens,
        "dtype": "float32",  # half precision is slow on a CPU
        "scorer": "auto" if importlib.util.find_spec("math_verify") else "exact",
        "threads": 1,
    }
    return load("paper", values | more)


@dataclass(frozen=True)
class Found:
    """What a sweep stored, and what it did."""

    samples: list[Sample]
    decoded: int
    seconds: float


def swept(config: Config, out: Path) -> Found:
    """Sweep, and read back what is stored, without detectors."""
    started = time.perf_counter()
    prepared = sweep.prepare(config, out)
    outcome = sweep.run(
        prepared, out, preset="paper", arguments=sys.argv[1:], progress=sweep.Progress()
    )
    seconds = time.perf_counter() - started
    samples = Study.open(out).samples([]).samples
    return Found(samples, outcome.counts.decoded, seconds)


def faults(samples: Sequence[Sample], largest: int) -> list[str]:
    """What must not be, one sentence each.

    Args:
        samples: of all configurations.
        largest: the budget that is above every length.
    """
    full = {one.pair: one for one in samples if one.backend == "full"}
    found = []
    for one in samples:
        who = f"{one.model} {one.dataset} {one.item_id} {one.backend} {one.budget}"
        if one.status not in ("ok", "capped"):
            found.append(f"{who}: {one.status} {one.message}")
        elif one.budget is not None and (one.keys_read_max or 0) > one.budget:
            found.append(f"{who}: read {one.keys_read_max} keys")
        elif one.budget == largest and one.text != full[one.pair].text:
            found.append(f"{who}: not full attention's text")
    return found


def main() -> int:
    """Run it, print the conditions, what was found and how long it took; 1 where a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {', '.join(FILES)}")
    parser.add_argument("--problems", type=int, default=5, help="of each file")
    parser.add_argument("--max-new-tokens", type=int, default=1200)
    parser.add_argument("--budget", default="128,256,512,1024,4096")
    parser.add_argument("--out", type=Path, help="folder of models and store (default: a new one)")
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="paper-end-to-end-"))
    models = save_models(folder / "models")
    sizes = {"problems": args.problems, "tokens": args.max_new_tokens}
    config = configured(models, args.data, **sizes, budgets=args.budget)
    print(f"{len(models)} models, {len(FILES)} files, {sizes}, budgets {config.budgets}: {folder}")
    first = swept(config, folder / "store")
    again = swept(config, folder / "store")
    wrong = faults(first.samples, max(config.budgets))
    if again.decoded or again.samples != first.samples:
        wrong.append(f"a second sweep decoded {again.decoded} runs, or reads otherwise")
    tokens = sum(one.tokens or 0 for one in first.samples)
    capped = sum(one.status == "capped" for one in first.samples)
    print(f"{len(first.samples)} runs, {capped} cut at their cap, {tokens:,} tokens")
    print(f"{first.seconds:.0f} s, the second time {again.seconds:.0f} s")
    for line in wrong:
        print(line)
    print("failed" if wrong else "all checks hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

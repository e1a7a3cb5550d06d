"""Train the small reasoning model that ships with the project.

    python scripts/training/train_reasoner.py --tokens 40e6 --out experiments/reasoner/checkpoint

Seeded and resumable: started again with the same --out it goes on from the last saved state; a
different --tokens moves the end (the learning rate falls linearly over the last 40%). --init goes
on from a finished checkpoint with fresh optimizers: its tokens count, so the curriculum goes on
too. Muon trains the matrices and AdamW everything else, in bf16 autocast or in float32, which is
faster on a CPU without bf16 tiles; weights are float32.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from reasoner_training import training
from reasoner_training.tokenizer import build_tokenizer, richer_vocabulary
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments.reasoner import problems


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=float, default=40e6, help="tokens to train on in all")
    parser.add_argument("--out", type=Path, default=Path("runs/reasoner"))
    parser.add_argument("--init", type=Path, help="checkpoint to go on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--mlp", type=int, default=512)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--save-minutes", type=float, default=4.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def new_model(args: argparse.Namespace) -> Qwen3ForCausalLM:
    tokenizer = build_tokenizer(richer_vocabulary())
    torch.manual_seed(args.seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(richer_vocabulary()),
            hidden_size=args.hidden,
            intermediate_size=args.mlp,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.kv_heads,
            head_dim=args.head_dim,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def go_on_from(model: Qwen3ForCausalLM, older: Qwen3ForCausalLM) -> None:
    """Take another model's weights; words that it does not know begin at the mean of its own."""
    weights = older.state_dict()
    for name, own in model.state_dict().items():
        known = weights[name]
        if len(known) < len(own):
            more = known.mean(0).expand(len(own) - len(known), -1)
            noise = 0.5 * known.std(0) * torch.randn(more.shape)
            weights[name] = torch.cat((known, more + noise))
    model.load_state_dict(weights)


def learning_rate(done: float) -> float:
    """Multiplier at a share `done` of the run: warm-up, flat, linear fall over the last 40%."""
    return min(1.0, (done + 1e-4) / 0.01, max(0.0, (1 - done) / 0.4) + 0.01)


def save(model: Qwen3ForCausalLM, optimizers: list, state: dict, out: Path, record: dict) -> None:
    """Weights and optimizer state, each replaced in one step so that a kill loses nothing."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    build_tokenizer(richer_vocabulary()).save_pretrained(out)
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    resume = {**state, "model": model.state_dict(), "opt": [o.state_dict() for o in optimizers]}
    partial = out.with_suffix(".resume.partial")
    torch.save(resume, partial)
    os.replace(partial, out.with_suffix(".resume"))


def main() -> None:
    args = arguments()
    console = Console()
    device = torch.device(args.device)
    model = new_model(args).to(device)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=args.muon_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    base = [args.muon_lr, args.adam_lr]
    state = {"tokens": 0, "begin": 0, "group": 0, "step": 0, "seconds": 0.0}
    if args.init is not None:
        go_on_from(model, Qwen3ForCausalLM.from_pretrained(args.init))
        before = json.loads((args.init / "training.json").read_text())
        state.update(
            tokens=before["tokens"], begin=before["tokens"], seconds=float(before["seconds"])
        )
    resume = args.out.with_suffix(".resume")
    if resume.exists():
        saved = torch.load(resume, map_location=device)
        model.load_state_dict(saved.pop("model"))
        for optimizer, old in zip(optimizers, saved.pop("opt"), strict=True):
            optimizer.load_state_dict(old)
        state = saved
        console.print(f"resumed at {state['tokens'] / 1e6:.2f}M tokens")
    parameters = sum(p.numel() for p in model.parameters())
    console.print(f"{parameters / 1e6:.2f}M parameters, {len(richer_vocabulary())} words, {device}")
    dataset = training.Groups(args.seed, state["group"], state["tokens"], args.batch_tokens)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, prefetch_factor=2)
    started, last_save, losses = time.time(), time.time(), []
    start_tokens, start_seconds = state["tokens"], state["seconds"]
    record: dict = {
        "data_version": problems.DATA_VERSION,
        "parameters": parameters,
        "seed": args.seed,
        "batch_tokens": args.batch_tokens,
        "muon_lr": args.muon_lr,
        "adam_lr": args.adam_lr,
    }
    for batches in loader:
        for batch in batches:
            run = args.tokens - state["begin"]
            scale = learning_rate((state["tokens"] - state["begin"]) / run)
            for optimizer, lr in zip(optimizers, base, strict=True):
                optimizer.param_groups[0]["lr"] = lr * scale
            moved = training.Batch(*(getattr(batch, f).to(device) for f in batch.__annotations__))
            with torch.autocast(device.type, torch.bfloat16, args.dtype == "bfloat16"):
                value = training.loss(model, moved)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(value.item())
            state["tokens"] += batch.tokens
            state["step"] += 1
            if state["step"] % 50 == 0:
                elapsed = time.time() - started
                rate = (state["tokens"] - start_tokens) / elapsed
                left = max(0.0, args.tokens - state["tokens"]) / rate / 60
                console.print(
                    f"step {state['step']} {state['tokens'] / 1e6:.2f}M tokens "
                    f"loss {sum(losses[-50:]) / 50:.4f} lr x{scale:.2f} "
                    f"{rate:,.0f} tokens/s {left:.0f} min left",
                    highlight=False,
                )
        state["group"] += 1
        state["seconds"] = start_seconds + time.time() - started
        finished = state["tokens"] >= args.tokens
        if finished or time.time() - last_save > args.save_minutes * 60:
            figures = training.holdout_figures(model, 64 if finished else 16)
            console.print({name: round(value, 3) for name, value in figures.items()})
            record.update(tokens=state["tokens"], seconds=round(state["seconds"]), holdout=figures)
            save(model, optimizers, state, args.out, record)
            last_save = time.time()
        if finished:
            resume.unlink()
            return


if __name__ == "__main__":
    main()

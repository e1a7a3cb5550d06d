"""Real models under our attention beside transformers and beside the naive oracles.

    python scripts/checks/check_real_models.py smollm2 qwen-coder-0.5b
    python scripts/checks/check_real_models.py qwen-coder-1.5b --only generate

generate: twenty questions, float32: full attention gives the tokens of transformers' `generate()`.
oracles: the paper's five methods at a budget of 48, on the tokens that they choose: logits of a
prompt and of 200 steps, and the positions kept, beside numpy and loops that share no code with
ours; in float64, or float32 for models above a billion weights, where a choice between two nearly
equal scores may fall either way. alone: a ragged batch, float64, gives each row what it gets alone.
Gemma has no oracle of a whole model. Exit code 1 where something differs by more than rounding.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "experiments")]

import attention  # noqa: E402
import lil  # noqa: E402
from experiments.grid import models  # noqa: E402
from tests.attention.oracles.compare import TOLERANCE, oracle, positions  # noqa: E402
from tests.attention.oracles.models import make_exact  # noqa: E402
from tests.experiments.test_real_smollm2 import QUESTIONS  # noqa: E402

NAMES = ("smollm2", "qwen-coder-0.5b", "qwen-coder-1.5b", "gemma3-270m")
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "sink": {"budget": 48},
    "h2o": {"budget": 48},
    "quest": {"budget": 48, "dense_layers": 0},
    "infllm": {"budget": 48},
}
WHAT = ("generate", "oracles", "alone")


def load(name: str, dtype: str) -> models.LoadedModel:
    """A model by its name, brought where it is not here."""
    done = subprocess.run(
        [ROOT / "scripts" / "real_models", name], stdout=-1, text=True, check=True
    )
    return models.load(models.find(done.stdout.strip()), dtype, "cpu")


def questions(loaded: models.LoadedModel) -> list[list[int]]:
    """Token ids of each, in the model's chat where it has one."""
    if loaded.tokenizer.chat_template is None:
        return [loaded.tokenizer(text)["input_ids"] for text in QUESTIONS]
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    made = loaded.tokenizer.apply_chat_template
    return [made(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


def generate(name: str, tokens: int) -> tuple[str, bool]:
    """Full attention beside transformers."""
    loaded = load(name, "float32")
    every, same = questions(loaded), 0
    full = attention.get("full")
    ours = lil.decode(loaded.model, loaded.tokenizer, every, backend=full, max_new_tokens=tokens)
    for ids, trace in zip(every, ours, strict=True):
        row = torch.tensor([ids])
        with torch.no_grad():
            said = loaded.model.generate(
                row, attention_mask=torch.ones_like(row), max_new_tokens=tokens, do_sample=False
            )
        same += list(trace.new_ids) == said[0, len(ids) :].tolist()
    return f"{same} of {len(every)} outputs of at most {tokens} tokens", same == len(every)


def oracles(name: str, steps: int) -> Iterator[tuple[str, bool]]:
    """Each method beside its oracle."""
    if name.startswith("gemma"):
        return
    dtype = torch.float32 if name == "qwen-coder-1.5b" else torch.float64
    loaded = load(name, str(dtype).removeprefix("torch."))
    if dtype == torch.float64:
        make_exact(loaded.model)  # norms and frequencies, which are float32 by themselves
    prompt = questions(loaded)[15]
    for method, params in METHODS.items():
        found = _beside(loaded.model, prompt, method, params, steps, dtype)
        yield f"{method}: {found[0]}", found[1]


@torch.no_grad()
def _beside(
    model: Any,
    prompt: list[int],
    method: str,
    params: dict[str, Any],
    steps: int,
    dtype: torch.dtype,
) -> tuple[str, bool]:
    naive = oracle(model, method, params, dtype)
    worst, largest, apart, ids = 0.0, 0.0, None, prompt
    with attention.get(method, **params).on(model) as cache:
        seen = 0
        for step in range(steps + 1):
            at = torch.arange(seen, seen + len(ids))[None]
            out = model(
                input_ids=torch.tensor([ids]), position_ids=at, past_key_values=cache,
                logits_to_keep=1,
            ).logits[0, -1].double().numpy()  # fmt: skip
            wanted = naive.forward(ids)[-1].astype(float)
            worst = max(worst, float(abs(out - wanted).max()))
            largest = max(largest, float(abs(wanted).max()))
            layers = range(len(naive.layers))
            if apart is None and any(
                positions(cache.kept_positions(i), 0) != naive.layers[i].kept() for i in layers
            ):
                apart = step
            seen += len(ids)
            ids = [int(out.argmax())]
    close = worst <= TOLERANCE[dtype] * max(1.0, largest)
    where = "the same positions" if apart is None else f"other positions from step {apart}"
    told = f"logits of {steps} steps differ by at most {worst:.1e} of {largest:.0f}, {where}"
    return told, close and apart is None


def alone(name: str, tokens: int) -> Iterator[tuple[str, bool]]:
    """Rows of a batch beside themselves alone."""
    loaded = load(name, "float64")
    every = questions(loaded)
    for method, params in METHODS.items():
        texts = []
        for rows in (len(every), 1):
            traces = lil.decode(
                loaded.model, loaded.tokenizer, every, backend=attention.get(method, **params),
                max_new_tokens=tokens, batch_size=rows, token_bytes=loaded.token_bytes,
            )  # fmt: skip
            texts.append([list(trace.new_ids) for trace in traces])
        same = sum(one == other for one, other in zip(*texts, strict=True))
        yield f"{method}: {same} of {len(every)} rows", same == len(every)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--only", nargs="*", choices=WHAT, default=list(WHAT))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args(argv)
    models.quiet_transformers()
    good = True
    for name in args.names:
        for what in args.only:
            if what == "alone" and name != "smollm2":
                continue
            started = time.monotonic()
            found: list[tuple[str, bool]] | Iterator[tuple[str, bool]]
            if what == "generate":
                found = [generate(name, args.tokens)]
            else:
                found = oracles(name, args.steps) if what == "oracles" else alone(name, args.tokens)
            for told, right in found:
                good &= right
                print(f"{name}, {what}: {told}{'' if right else '  DIFFERS'}", flush=True)
            print(f"  {time.monotonic() - started:.0f} s", flush=True)
    print("all agree" if good else "NOT the same")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

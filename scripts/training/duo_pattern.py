"""Measure which KV heads of a model need far tokens, and write a pattern for the method `duo`.

The authors train gates; nothing is trained here. A forward of full attention over each text
compares the outputs of its last queries with those from first and newest tokens alone. A gate is
x / (1 + x), x the mean of |full - streaming|^2 / |full|^2; 0 where a model's own window slides."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import Duo
from attention.contract import Full, Geometry, KeepAll, Step, check_int, softmax
from attention.errors import InvalidValue
from experiments.cli.parser import Parser
from experiments.grid import models
from experiments.grid.data import load_set
from experiments.report.exports import check_file

LAST = 64  # newest tokens of a text, with its answer, that are compared


class ComparedLayer(KeepAll):
    """Full attention; `change` is x of each KV head in the newest prompt, of one row."""

    def __init__(self, geometry: Geometry, backend: Any, page: int = 1) -> None:
        super().__init__(geometry, backend, page)
        self.duo = backend.duo

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = super().prefill(q, k, v, scaling, step)
        g, slots = self.geometry, torch.arange(k.shape[2])
        newest = slots[-LAST:, None]
        far = (slots >= self.duo.sinks) & (slots <= newest - self.duo.budget + self.duo.sinks)
        scores = q[0, :, -LAST:].view(g.Hkv, g.G, LAST, -1) @ k[0, :, None].mT * scaling
        probs = softmax(scores.masked_fill(far | (slots > newest), -torch.inf), g.grouped_sinks)
        streaming = probs @ v[0, :, None]
        full = out[0, -LAST:].transpose(0, 1).view(streaming.shape)
        change = (full - streaming).square().sum(-1) / full.square().sum(-1)
        self.change = change.mean((1, 2)).tolist()
        return out


@dataclass(frozen=True, kw_only=True)
class Compared(Full):
    """Full attention that compares its last queries with the streaming heads of `duo`."""

    layer_class = ComparedLayer
    duo: Duo


@torch.inference_mode()
def run(args: argparse.Namespace) -> None:
    count = check_int("texts", args.texts, 1)
    duo = Duo(budget=args.budget, sinks=args.sinks, pattern=[[0]], sparsity=0.5)
    check_file("out", args.out)
    Path(args.out).resolve().parent.mkdir(parents=True, exist_ok=True)
    loaded = models.load(models.find(args.model), "float32", "cpu")
    most, texts = loaded.model.config.max_position_embeddings, []
    for item in load_set(args.dataset, "study", count).items:
        answer = loaded.tokenizer(str(item.gold or ""), add_special_tokens=False)["input_ids"]
        texts.append(torch.tensor(item.prompt_ids(loaded.tokenizer) + answer))
        if not (least := max(LAST, args.budget) + 2) <= len(texts[-1]) <= most:
            raise InvalidValue("dataset", args.dataset, f"texts of {least:,} to {most:,} tokens")
    changes = []
    with Compared(duo=duo).on(loaded.model) as cache:
        for ids in texts:
            loaded.model(ids[None, :-1], past_key_values=(own := cache.new()), logits_to_keep=1)
            changes.append([getattr(x, "change", [0.0] * x.key_heads) for x in own.layers])
    pattern = (x := np.mean(changes, axis=0)) / (1 + x)
    np.savetxt(args.out, pattern, fmt="%.6f", delimiter="\t")


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="name, folder, GGUF file or hub id")
    parser.add_argument("--out", required=True, metavar="FILE", help="the pattern, a row a layer")
    parser.add_argument("--dataset", default="needles(count=4, tokens=1024)", help="(%(default)s)")
    parser.add_argument("--texts", type=int, default=8, help="how many are compared (8)")
    parser.add_argument("--budget", type=int, default=128, help="tokens of streaming heads (128)")
    parser.add_argument("--sinks", type=int, help="first tokens among them (as in duo)")
    try:
        run(parser.parse_args())
    except InvalidValue as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

"""Feeding a method: a tiny random model, ragged prompts, or one layer without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from attention.contract.backend import Backend
from attention.core.ropes import Rope, Still
from attention.core.step import Step
from attention.layers.layer import Geometry
from attention.patching.cache import AttentionCache

VOCABULARY = 53


def tiny_model(layers: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    """A Llama of random weights on which a wrong key shows in the logits; always the same one."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 << 17,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            # 0.15: with the usual 0.02 attention is flat and hides which keys were read.
            weight.normal_(0.0, 0.15, generator=generator)
    return model.eval().requires_grad_(False).to(dtype)


def text(*shape: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def left_padded(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids and padding mask, (B, longest)."""
    longest = max(map(len, prompts))
    ids = torch.stack([torch.cat((p.new_zeros(longest - len(p)), p)) for p in prompts])
    columns = torch.arange(longest, device=ids.device)
    mask = torch.stack([columns >= longest - len(p) for p in prompts])
    return ids, mask.long()


@torch.no_grad()
def prefill(
    model: Any, cache: AttentionCache, prompts: Sequence[Tensor], chunk: int | None = None
) -> Tensor:
    """Feed left-padded prompts, `chunk` columns at a time; logits of all columns, (B, T, V)."""
    ids, mask = left_padded(prompts)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    parts, width = [], chunk or ids.shape[1]
    for start in range(0, ids.shape[1], width):
        here, until = slice(start, start + width), mask[:, : start + width]
        new = {"input_ids": ids[:, here], "position_ids": positions[:, here]}
        parts.append(model(**new, attention_mask=until, past_key_values=cache).logits)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def step(model: Any, cache: AttentionCache, column: Tensor) -> Tensor:
    """One token a row, (B,); logits (B, V)."""
    ids, positions = column[:, None], cache.seen[:, None]
    logits: Tensor = model(input_ids=ids, position_ids=positions, past_key_values=cache).logits
    return logits[:, -1]


def decode(model: Any, cache: AttentionCache, answers: Tensor) -> Tensor:
    """Feed (B, n) tokens one by one; logits after each, (B, n, V)."""
    return torch.stack([step(model, cache, column) for column in answers.T], dim=1)


def follow(
    model: Any,
    cache: AttentionCache,
    prompts: Sequence[Tensor],
    answers: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """Logits after the prompts and after each of the answers' tokens (B, n): (B, 1 + n, V)."""
    first = prefill(model, cache, prompts, chunk)[:, -1:]
    return torch.cat([first, decode(model, cache, answers)], dim=1)


class OneLayer:
    """A layer without a model, fed random vectors, everything kept to check against.

    Attributes:
        layer: the method's state; of the last layer where there are several.
        n: tokens fed.
        q, k, v: all that was fed, (B, Hq, n, D) and (B, Hkv, n, D); queries are not scaled.

    Args:
        heads: Hq and Hkv.
        rows: B.
        sink_logits: further logits in each softmax, as some models have them, (Hq,).
        layers: how many in a row, behind the dense ones, are fed the same; the last one answers.
    """

    def __init__(
        self,
        backend: Backend,
        heads: tuple[int, int] = (4, 2),
        rows: int = 1,
        sink_logits: Tensor | None = None,
        layers: int = 1,
    ) -> None:
        self.rows, (self.Hq, self.Hkv), self.D, self.scaling = rows, heads, 8, 0.5
        self.sink_logits = sink_logits
        last = backend.dense_layers + layers
        sizes = rows, self.Hq, self.Hkv, self.D, torch.float64, torch.device("cpu"), Rope(Still())
        how: dict[str, Any] = {"sink_logits": sink_logits, "windows": (None,) * last}
        places = (Geometry(backend.name, i, *sizes, **how) for i in range(last))
        self._layers = [backend.layer(x) for x in places if x.index >= backend.dense_layers]
        self.layer = self._layers[-1]
        self._random = torch.Generator().manual_seed(0)
        self.n = self._prompt = 0
        self.q, self.k, self.v = (self._draw(H, 0) for H in (self.Hq, self.Hkv, self.Hkv))

    def _draw(self, H: int, T: int) -> Tensor:
        return torch.randn(self.rows, H, T, self.D, generator=self._random, dtype=torch.float64)

    def feed(self, T: int = 1) -> Tensor:
        """One forward of T tokens, (B, T, Hq, D): the prompt, then decode steps if T is 1."""
        q, v, k = self._draw(self.Hq, T), self._draw(self.Hkv, T), self._draw(self.Hkv, T)
        past = np.full(self.rows, self.n, dtype=np.int64)
        self._prompt = self._prompt or T
        prompt = np.full_like(past, self._prompt)
        step = Step(past, np.full_like(past, T), T, torch.device("cpu"), prompt)
        self.n += T
        fed = (self.q, q), (self.k, k), (self.v, v)
        self.q, self.k, self.v = (torch.cat(pair, 2) for pair in fed)
        q, k, v = (x.clone() for x in (q, k, v))
        out = [x.forward(q, k, v, self.scaling, step) for x in self._layers][-1].clone()
        for cut, *_ in zip(*(x.close(step) for x in self._layers), strict=True):
            *_, before = self.layer.shorten_together(cut, step.inputs(cut), self._layers)
            self.layer.before |= zip(cut.rows.tolist(), before, strict=True)
        for x in (q, k, v):  # where the model is captured the next step's lie there
            x.fill_(torch.nan)
        return out

    def kept(self, row: int = 0) -> list[list[int]]:
        """Positions of the tokens each KV head keeps."""
        return _lists(self.layer.kept_positions(row, self.n))

    def read(self, row: int = 0) -> list[list[int]]:
        """Positions the last decode query read, per KV head or per query head."""
        return _lists(self.layer.read_positions(row, self.n))


def _lists(positions: Tensor) -> list[list[int]]:
    # A head with fewer positions than another begins with -1.
    return [[int(p) for p in head if p >= 0] for head in positions]

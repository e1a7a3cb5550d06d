"""Random queries, keys and values through the attention of a patched model, without the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface

import attention
from attention.patching.cache import AttentionCache
from tests.attention.oracles.models import make_exact


@dataclass(frozen=True)
class Shape:
    """Layers, KV heads, query heads per KV head, head size, and the dtype of all vectors."""

    layers: int
    Hkv: int
    G: int
    D: int
    dtype: torch.dtype = torch.float64

    @property
    def Hq(self) -> int:  # noqa: N802
        return self.Hkv * self.G


@lru_cache(maxsize=256)
def model(shape: Shape) -> LlamaForCausalLM:
    """A model of which only the configuration, the modules and the rotary tables serve."""
    config = LlamaConfig(
        vocab_size=2,
        hidden_size=shape.Hq * shape.D,
        intermediate_size=2,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.Hq,
        num_key_value_heads=shape.Hkv,
        head_dim=shape.D,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    with torch.device("meta"):
        made = LlamaForCausalLM(config).eval()
    make_exact(made.to_empty(device="cpu").to(shape.dtype))
    for weight in made.parameters():  # numbers, which a block looks at before it begins
        torch.nn.init.constant_(weight, 0.01)
    return made


def rope(shape: Shape, x: Tensor, positions: Tensor) -> Tensor:
    """(..., n, D) vectors at n positions, as the model ropes them."""
    cos, sin = model(shape).model.rotary_emb(x, positions[None])
    first, second = x.chunk(2, dim=-1)
    return x * cos[0] + torch.cat((-second, first), dim=-1) * sin[0]


@dataclass(frozen=True)
class Text:
    """What one sequence brings to each layer.

    Attributes:
        q: (L, Hq, n, D), not roped.
        k, v: (L, Hkv, n, D), k not roped.
        turned: whether the model ropes; otherwise q and k are what it hands on.
    """

    shape: Shape
    q: Tensor
    k: Tensor
    v: Tensor
    turned: bool = True

    def __len__(self) -> int:
        return self.q.shape[2]

    @cached_property
    def roped(self) -> tuple[Tensor, Tensor]:
        """Queries and keys at their positions."""
        if not self.turned:
            return self.q, self.k
        here = torch.arange(len(self))
        return rope(self.shape, self.q, here), rope(self.shape, self.k, here)

    @cached_property
    def exact(self) -> Tensor:
        """Full attention of every token, (L, n, Hq, D), in float64."""
        q, k, v = (x.double() for x in (*self.roped, self.v))
        k, v = (x.repeat_interleave(self.shape.G, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * self.shape.D**-0.5
        later = torch.ones(len(self), len(self), dtype=torch.bool).triu(1)
        return (scores.masked_fill(later, float("-inf")).softmax(-1) @ v).transpose(1, 2)

    def logits_at(
        self, layer: int, head: int, query: int, keys: Sequence[int], distances: Sequence[int]
    ) -> Tensor:
        """A query's logits with these keys seen at these distances, (keys,)."""
        q = self.q[layer, head, query].expand(len(keys), -1)
        turned = rope(self.shape, q, torch.as_tensor(distances))
        chosen = self.k[layer, head // self.shape.G, list(keys)]
        return (chosen * turned).sum(-1) * self.shape.D**-0.5


def text(shape: Shape, n: int, seed: int, reveal: bool = False, sharp: float = 1.5) -> Text:
    """Random vectors; with `reveal`, token i's value is the unit vector i.

    The output is then the probability of every token, so n must not exceed D.
    """
    L, Hq, Hkv, D = shape.layers, shape.Hq, shape.Hkv, shape.D
    # Token by token, so that a shorter text is the beginning of a longer one.
    numbers = np.random.default_rng(seed).standard_normal((n, L, Hq + 2 * Hkv, D))
    drawn = torch.from_numpy(numbers)
    q, k, v = drawn.permute(1, 2, 0, 3).split((Hq, Hkv, Hkv), dim=1)
    if reveal:
        v = torch.eye(D, dtype=torch.float64)[:n].expand(L, Hkv, -1, -1)
    return Text(shape, *((x * f).to(shape.dtype) for x, f in ((q, sharp), (k, 1.0), (v, 1.0))))


class Session:
    """A cache and the texts its rows are in, fed as the layers of a model feed it."""

    def __init__(self, cache: AttentionCache, shape: Shape, texts: Sequence[Text]) -> None:
        self.cache, self.shape = cache, shape
        self.texts, self.at = list(texts), [0] * len(texts)
        self.mask = torch.zeros(len(texts), 0, dtype=torch.long)
        self.padded = False

    def new(self, texts: Sequence[Text]) -> Session:
        """Another cache of the same block."""
        return Session(self.cache.new(), self.shape, texts)

    @torch.no_grad()
    def feed(self, counts: Sequence[int] | int = 1) -> list[Tensor]:
        """One forward: row r brings its next counts[r] tokens, padded, (L, counts[r], Hq, D)."""
        m, B = model(self.shape), len(self.texts)
        counts = [counts] * B if isinstance(counts, int) else list(counts)
        T = max(counts)
        past = torch.tensor(self.at)[:, None]
        if min(counts) == T:
            real = self.mask.new_ones(B, T)
            positions = past + torch.arange(T)
        else:
            real = (torch.arange(T) >= T - torch.tensor(counts)[:, None]).long()
            positions = (past + real.cumsum(-1) - 1).clamp(min=0)
        mask = torch.cat((self.mask, real), dim=1)
        self.padded = self.padded or min(counts) < T
        name = m.config._attn_implementation
        attend = AttentionInterface()[name]
        # What the model makes of it before its first layer.
        made = AttentionMaskInterface()[name](attention_mask=mask if self.padded else None)
        per_layer = []
        for index, layer in enumerate(m.model.layers):
            q, k, v = (
                torch.stack([self._columns(r, x, index, n, T) for r, n in enumerate(counts)])
                for x in range(3)
            )
            k, v = self.cache.update(k, v, index)
            module = layer.self_attn
            how = {"scaling": module.scaling, "dropout": 0.0, "position_ids": positions}
            per_layer.append(attend(module, q, k, v, made, **how)[0])
        self.mask = mask
        self.at = [at + n for at, n in zip(self.at, counts, strict=True)]
        outs = torch.stack(per_layer, dim=1)  # (B, L, T, Hq, D)
        return [outs[r, :, T - n :] for r, n in enumerate(counts)]

    def _columns(self, row: int, which: int, layer: int, n: int, T: int) -> Tensor:
        """Queries, keys or values of one row, with padding of loud noise before them."""
        read = self.texts[row]
        x = (*read.roped, read.v)[which][layer, :, self.at[row] : self.at[row] + n]
        if n == T:
            return x
        noise = torch.randn(x.shape[0], T - n, x.shape[2], generator=_noise()).to(x) * 20
        return torch.cat((noise, x), dim=1)

    def replace(self, rows: Sequence[int], other: Session, other_rows: Sequence[int]) -> None:
        """Rows go on as copies of another session's rows."""
        self.cache.replace_rows(rows, other.cache, other_rows)
        for row, source_row in zip(rows, other_rows, strict=True):
            self.texts[row], self.at[row] = other.texts[source_row], other.at[source_row]
        self.unpad()

    def unpad(self) -> None:
        """Padding lies behind all rows by now; only the number of columns matters."""
        self.padded = False
        self.mask = torch.ones(len(self.texts), self.cache.get_seq_length(), dtype=torch.long)

    def kept(self, layer: int = 0) -> list[list[list[int]]]:
        """Positions kept by [row][KV head]."""
        rows = [x.tolist() for x in self.cache.kept_positions(layer)]
        return [[[p for p in head if p >= 0] for head in heads] for heads in rows]

    def read(self, layer: int = 0) -> list[list[list[int]]]:
        """Positions the last decode query read by [row][query head]."""
        reads = []
        for x in self.cache.read_positions(layer):
            sets = x.repeat_interleave(self.shape.Hq // len(x), 0) if len(x) else x
            reads.append([[p for p in head if p >= 0] for head in sets.tolist()])
        return reads


def _noise() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@contextmanager
def session(backend: attention.Backend, texts: Sequence[Text]) -> Iterator[Session]:
    """An empty cache of one row a text."""
    shape = texts[0].shape
    with backend.on(model(shape)) as cache:
        yield Session(cache, shape, texts)


def play(
    backend: attention.Backend, texts: Sequence[Text], forwards: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The outputs of all tokens fed, per row (L, n, Hq, D).

    Args:
        forwards: tokens each row brings, per forward.
    """
    with session(backend, texts) as s:
        parts = [s.feed(counts) for counts in forwards]
    return [torch.cat(rows, dim=1) for rows in zip(*parts, strict=True)]

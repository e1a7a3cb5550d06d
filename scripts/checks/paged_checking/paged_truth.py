"""What a decode query has to read and what it has to give, put together in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from paged_layers import Heads
from torch import Tensor


def rule(
    name: str, numbers: dict[str, Any], block: int, seen: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], int]:
    """Which tokens are read whatever they are, the blocks that compete, and how many win.

    Args:
        name, numbers: the method and its parameters.
        block: tokens of a block.
        seen: by the query, its own token included.
    """
    always, none = np.ones(seen, dtype=bool), np.arange(0)
    if name in ("sink", "window"):
        sinks = numbers.get("sinks", 0)
        always[sinks : max(sinks, seen - (numbers["budget"] - sinks))] = False
        return always, none, 0
    if name == "quest":
        competing, wins = np.arange((seen - 1) // block), numbers["budget"] // block - 1
    else:
        first, wins = numbers["n_init"], numbers["topk"]
        left = seen - numbers["n_local"] - first  # tokens that have left the window
        newest = (left - 1) // block if left > 0 else 0
        competing = first // block + np.arange(newest)
    if len(competing) <= wins:
        return always, none, 0
    always[competing[0] * block : (competing[-1] + 1) * block] = False
    return always, competing, wins


def worth(
    name: str, numbers: dict[str, Any], q: Tensor, keys: Tensor, begin: int, angles: Tensor
) -> Tensor:
    """What blocks that compete are worth to a query, (choices, P).

    Args:
        name, numbers: the method and its parameters.
        q: the query, (Hkv, G, D).
        keys: of the blocks, (P, Hkv, tokens, D).
        begin: the position of the first of these keys.
        angles: at positions up to that of the query, its own the last, (positions, D / 2).
    """
    q, keys = q.double(), keys.double()
    P, _, block, _ = keys.shape
    if name == "quest":
        low, high = (x.transpose(0, 1)[:, :, None] for x in (keys.amin(2), keys.amax(2)))
        bounds = torch.maximum(q[:, None] * low, q[:, None] * high).sum(-1)  # (Hkv, P, G)
        return bounds.amax(-1) if numbers.get("gqa") == '"max"' else bounds.sum(-1)
    own = angles[begin : begin + P * block].view(P, 1, block, -1)
    mean = turned(keys, -own).mean(2)  # (P, Hkv, D)
    far = turned(q, angles[numbers["n_local"] - 1] - angles[-1]).sum(1)
    each = torch.einsum("phd,hd->hp", mean, far)
    return each if numbers.get("selection") == '"kv_head"' else each.sum(0, keepdim=True)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Vectors (..., D) turned by angles (..., D / 2)."""
    one, two = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


def listed(call: dict[str, Any], cache: Tensor, folded: bool) -> tuple[Tensor, Tensor]:
    """Keys beside values of what the kernel was told to read, and which of them it reads.

    Args:
        call: its arguments, of R requests.
        cache: (blocks, Hkv, tokens, 2 D).
        folded: whether each request is of one head.

    Returns:
        (R, heads, L, 2 D) and (R, 1, 1, L).
    """
    table, Hkv = call["block_table"].long(), cache.shape[1]
    if folded:
        picked = cache[table // Hkv, table % Hkv].flatten(1, 2)[:, None]
    else:
        picked = cache[table].transpose(1, 2).flatten(2, 3)
    at, length = torch.arange(picked.shape[2], device=cache.device), call["seqused_k"][:, None]
    read, left = at < length, call["window_size"][0]
    if left >= 0:
        read &= at >= length - 1 - left
    return picked, read[:, None, None]


def attention(q: Tensor, both: Tensor, read: Tensor, heads: Heads, dtype: torch.dtype) -> Tensor:
    """Attention in plain torch, computed in a dtype.

    Args:
        q: (R, heads, queries of a head, D).
        both: keys beside values, (R, heads, L, 2 D).
        read: which of them are read, a mask over (R, heads, queries of a head, L).
        heads: for the scale.
        dtype: of all.
    """
    k, v = both.to(dtype).chunk(2, dim=-1)
    scores = torch.matmul(q.to(dtype) * heads.scale, k.transpose(2, 3))
    return torch.matmul(scores.masked_fill(~read, float("-inf")).softmax(-1), v)


class Errors:
    """How far outputs lie from those in float64, beside plain torch in the dtype of the cache.

    Args:
        dtype: of the cache.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.largest, self.plain, self.outputs = 0.0, 0.0, 0

    def see(self, out: Tensor, q: Tensor, both: Tensor, read: Tensor, heads: Heads) -> None:
        """Compare outputs, (R, heads, queries of a head, D) as those of `attention`."""
        exact = attention(q, both, read, heads, torch.float64)
        plain = attention(q, both, read, heads, self.dtype)
        apart = float((out.double() - exact).abs().nan_to_num(nan=float("inf")).max())
        self.largest = max(self.largest, apart)
        self.plain = max(self.plain, float((plain.double() - exact).abs().max()))
        self.outputs += out.shape[0] * out.shape[2]

    @property
    def bar(self) -> float:
        """Twice the largest error of plain torch, which sums in another order."""
        return 2 * self.plain

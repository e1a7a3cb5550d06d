"""Decode queries over a list of slots, in float64 and by the definition of attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def attended(
    q: Tensor, k: Tensor, v: Tensor, slots: Sequence[int], sinks: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the queries of one set get of these slots.

    Args:
        q: scaled, (M, D).
        k, v: (C, D).
        slots: those read, in any order.
        sinks: logits without a value, (M,).

    Returns:
        Output (M, D), probabilities (M, slots) and the logarithm of the sum of exponentials (M,);
        zeros and minus infinity where there is nothing to read.
    """
    q, k, v = (x.detach().cpu().to(torch.float64).numpy() for x in (q, k, v))
    k, v = k[list(slots)], v[list(slots)]
    out, probs, lse = np.zeros_like(q), np.zeros((len(q), len(k))), np.full(len(q), -math.inf)
    for m, query in enumerate(q):
        logits = (k * query).sum(1)
        every = logits if sinks is None else np.append(logits, float(sinks[m]))
        if len(every) == 0:
            continue
        highest = every.max()
        lse[m] = highest + math.log(math.fsum(np.exp(every - highest)))
        probs[m] = np.exp(logits - lse[m])
        out[m] = (probs[m][:, None] * v).sum(0)
    return out, probs, lse

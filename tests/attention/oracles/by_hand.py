"""Forwards whose probabilities are known beforehand, for sums by hand."""

from __future__ import annotations

import numpy as np

from .layer import Layer


def no_rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    del positions
    return x


def radian(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Two components turned by one radian a position, so that (1, 0).(1, 0) = cos(distance)."""
    cos, sin = np.cos(positions.astype(float)), np.sin(positions.astype(float))
    return np.stack([x[:, 0] * cos - x[:, 1] * sin, x[:, 1] * cos + x[:, 0] * sin], axis=1)


def shares(layer: Layer, *w: float) -> np.ndarray:
    """One forward in which a slot's probability is its share of the weights w; values = position.

    A tuple as a weight gives each query head of the layer's one KV head a weight of its own.
    """
    weights = np.array([np.broadcast_to(x, (layer.Hq,)) for x in w], dtype=float)
    q = np.broadcast_to(np.eye(layer.Hq), (len(w), layer.Hq, layer.Hq))
    v = np.arange(layer.n, layer.n + len(w), dtype=float)[:, None, None]
    return layer.forward(q, np.log(weights)[:, None, :], v)[-1, :, 0]


def blank(layer: Layer, T: int) -> None:
    """T tokens without content."""
    zeros = np.zeros((T, layer.Hkv, 1))
    layer.forward(np.zeros((T, layer.Hq, 1)), zeros, zeros)

"""How well numbers tell word salad from sound chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from attention.errors import InvalidValue


def auroc(numbers: Sequence[float], labels: Sequence[int]) -> float | None:
    """Area under the ROC curve: how often a salad chunk has the higher number, ties half.

    From the sum of ranks (Mann and Whitney, 1947); None where one kind is missing.

    Args:
        numbers: logits or probabilities.
        labels: 1 for word salad, else 0.

    Raises:
        InvalidValue: not one label a number.
    """
    if len(numbers) != len(labels):
        raise InvalidValue("labels", len(labels), f"one a number: {len(numbers)}")
    salad: npt.NDArray[np.bool_] = np.asarray(labels, dtype=bool)
    positive, negative = int(salad.sum()), int((~salad).sum())
    if not positive or not negative:
        return None
    ranks = rankdata(np.asarray(numbers, dtype=np.float64))
    wins = float(ranks[salad].sum()) - positive * (positive + 1) / 2
    return wins / (positive * negative)


def evaluate(
    probabilities: Sequence[float], labels: Sequence[int], threshold: float = 0.5
) -> dict[str, Any]:
    """Counts, accuracy and AUROC over chunks (the paper's Table 5); missing is None.

    Args:
        probabilities: of being word salad, one a chunk.
        labels: 1 for word salad, else 0.
        threshold: a chunk is called word salad above it.

    Raises:
        InvalidValue: not one label a probability.
    """
    area = auroc(probabilities, labels)
    right = sum((p > threshold) == bool(y) for p, y in zip(probabilities, labels, strict=True))
    called = sum(p > threshold for p in probabilities)
    return {
        "chunks": len(labels),
        "salad": int(sum(map(bool, labels))),
        "called_salad": int(called),
        "accuracy": right / len(labels) if labels else None,
        "auroc": area,
    }

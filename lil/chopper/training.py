"""Training the classifier from hidden states and labels, and how well its numbers tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attention.errors import InvalidValue

if TYPE_CHECKING:  # help that names the recipe is no reason to wait for torch
    import torch
    from torch import Tensor
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata


class Fit(NamedTuple):
    """Weight (hidden size,), bias, and how it went, JSON-able."""

    weight: Tensor
    bias: float
    facts: dict[str, Any]


@dataclass(frozen=True)
class Training:
    """The Word Salad Chopper's recipe (appendix C): logistic regression by Adam, classes balanced.

    The larger class is drawn down to the smaller one's size, so no weight is left to put on a
    class. Inputs are hidden states as they are, neither centred nor scaled. Where the paper is
    silent: the layer starts as torch's linear layers do, and is fitted in float64, so that the
    weights hang as little as possible on the order in which numbers are added.

    Args:
        lr: of Adam, without weight decay.
        batch_size: chunks a step.
        epochs: passes over the chunks.
        seed: of the draw, the start and the order.
        short: chunks of at most so many tokens are left out.

    Raises:
        InvalidValue: a value outside its range.
    """

    lr: float = 1e-2
    batch_size: int = 8192
    epochs: int = 50
    seed: int = 41
    short: int = 10

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise InvalidValue("lr", self.lr, "above 0")
        for name, least in (("batch_size", 1), ("epochs", 1), ("seed", 0), ("short", 0)):
            if getattr(self, name) < least:
                raise InvalidValue(name, getattr(self, name), f"at least {least}")

    def params(self) -> dict[str, Any]:
        """The parameters, JSON-able."""
        return asdict(self)

    def fit(self, states: Tensor, labels: Tensor, tokens: Tensor) -> Fit:
        """Weight and bias; the same input gives the same output.

        Args:
            states: (N, hidden size), the hidden state at the end of each chunk.
            labels: (N,), 1 for word salad, else 0.
            tokens: (N,), each chunk's length.

        Raises:
            InvalidValue: not one label and length a state, a state that is not finite, or no chunk
                of one class.
        """
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        if not (len(states) == len(labels) == len(tokens)):
            sizes = (len(states), len(labels), len(tokens))
            raise InvalidValue("chunks", sizes, "as many states as labels and lengths")
        draw = torch.Generator().manual_seed(self.seed)
        chosen = self._balanced(labels, tokens > self.short, draw)
        x, y = states[chosen].double(), labels[chosen].double()
        if not bool(torch.isfinite(x).all()):
            raise InvalidValue("states", "not finite", "finite hidden states")
        bound = x.shape[1] ** -0.5
        start = torch.empty(x.shape[1] + 1, dtype=torch.float64)
        weights = start.uniform_(-bound, bound, generator=draw).requires_grad_()
        optimizer = torch.optim.Adam([weights], lr=self.lr, weight_decay=0.0)
        loss = torch.zeros(())
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(x), generator=draw)
                for at in range(0, len(x), self.batch_size):
                    part = order[at : at + self.batch_size]
                    logits = x[part] @ weights[:-1] + weights[-1]
                    loss = binary_cross_entropy_with_logits(logits, y[part])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        facts = {**self.params(), "chunks_of_each_class": len(x) // 2, "last_loss": loss.item()}
        fitted = weights.detach()
        return Fit(fitted[:-1].float(), float(fitted[-1]), facts)

    def _balanced(self, labels: Tensor, usable: Tensor, draw: torch.Generator) -> Tensor:
        """Indices of as many chunks of one class as of the other."""
        import torch

        classes = [torch.nonzero(usable & (labels == kind)).flatten() for kind in (0, 1)]
        counts = [len(indices) for indices in classes]
        if not min(counts):
            allowed = (
                f"chunks of more than {self.short} tokens of both kinds: {counts[0]} are sound, "
                f"{counts[1]} word salad; other problems, smaller budgets or a higher cap give more"
            )
            raise InvalidValue("chunks", sum(counts), allowed)
        drawn = [
            indices[torch.randperm(len(indices), generator=draw)[: min(counts)]]
            for indices in classes
        ]
        return torch.cat(drawn)


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

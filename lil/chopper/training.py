"""Training the classifier from hidden states and labels, and how well its numbers tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy.stats import mannwhitneyu

from attention.errors import InvalidValue, check_int, check_number

if TYPE_CHECKING:  # help that names the recipe is no reason to wait for torch
    import torch
    from torch import Tensor


class Fit(NamedTuple):
    """Weight (hidden size,), bias, and how it went, JSON-able."""

    weight: Tensor
    bias: float
    facts: dict[str, Any]


@dataclass(frozen=True)
class Training:
    """The Word Salad Chopper's recipe (appendix C): logistic regression by Adam, classes balanced.

    The larger class is drawn down to the smaller one's size. Inputs are hidden states as they are.
    Where the paper is silent: the layer starts as torch's linear layers do, and is fitted in
    float64.

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
        check_number("lr", self.lr, "above 0", above=0)
        for name, least in (("batch_size", 1), ("epochs", 1), ("seed", 0), ("short", 0)):
            check_int(name, getattr(self, name), least)

    def params(self) -> dict[str, Any]:
        """The parameters, JSON-able."""
        return asdict(self)

    def fit(self, states: Tensor, labels: Tensor, tokens: Tensor) -> Fit:
        """Weight and bias from states (N, hidden size), labels and lengths (N,) of chunks."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

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


def evaluate(
    probabilities: Sequence[float], labels: Sequence[int], threshold: float = 0.5
) -> dict[str, Any]:
    """Counts, accuracy and AUROC over chunks (the paper's Table 5); missing is None.

    A chunk counts as word salad where its probability is above `threshold`.
    """
    salad = [p for p, label in zip(probabilities, labels, strict=True) if label]
    sound = [p for p, label in zip(probabilities, labels, strict=True) if not label]
    called = sum(p > threshold for p in probabilities)
    right = sum(p > threshold for p in salad) + sum(p <= threshold for p in sound)
    # How often a salad chunk has the higher number, ties half.
    wins = float(mannwhitneyu(salad, sound).statistic) if salad and sound else None
    return {
        "chunks": len(labels),
        "salad": len(salad),
        "called_salad": int(called),
        "accuracy": right / len(labels) if labels else None,
        "auroc": None if wins is None else wins / (len(salad) * len(sound)),
    }

"""L2Norm: tokens whose keys are short stay."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attention.contract import Dropping, Evicting, Step


class L2NormLayer(Evicting):
    """A slot is worth the more the shorter its key is."""

    def worth(self, S: int, step: Step) -> Tensor:
        return -torch.linalg.vector_norm(self.k.data[:, :, :S], dim=-1, dtype=self.geometry.wide)


@dataclass(frozen=True, kw_only=True)
class L2Norm(Dropping):
    """Keeps the tokens whose keys have the smallest norm.

    Devoto et al., arXiv 2406.11430: a key of small norm tends to receive much attention. The
    authors compress by a ratio, now and then; here one token goes at each step.

    Args:
        budget: tokens a decode query may read, current token included; at least 2.
        dense_layers: first layers left dense, as the authors do; exempt from the budget.
    """

    name: ClassVar[str] = "l2norm"
    source: ClassVar[str] = "L2Norm: keys of small norm (arXiv 2406.11430)"
    least_budget: ClassVar[int] = 2
    layer_class = L2NormLayer
    budget: int
    dense_layers: int = 2

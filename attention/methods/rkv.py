"""R-KV: tokens the newest queries attend to and whose keys are not there twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from attention.contract import (
    Compressing,
    Dropping,
    Geometry,
    InvalidValue,
    Layer,
    SharedCompressing,
    added,
    check_flag,
    check_int,
    check_share,
    check_window,
    newest_logits,
    over_group,
    softmax,
)


class RKVLayer(Compressing):
    """Scores are computed anew at each compression."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: RKV) -> None:
        super().__init__(geometry, backend, observers=backend.window)
        self.backend, self.buffer = backend, backend.buffer

    def target(self, seen: int, room: int) -> int:
        return self.limit - self.buffer if self.buffer else super().target(seen, room)

    def least_room(self) -> int:
        return self.observers + self.buffer + 1 if self.buffer else super().least_room()

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        candidates, wide = k.shape[2] - self.observers, self.geometry.wide
        keys = k.to(wide)
        attention = self.attention(q, keys[:, :, :candidates])
        rest = self.geometry.engine.redundancy(keys, self.backend.threshold)[:, :, :candidates]
        score = self.backend.mix * attention - (1 - self.backend.mix) * rest
        return functional.pad(score, (0, self.observers), value=float("inf"))

    def attention(self, q: Tensor, k: Tensor) -> Tensor:
        """(R, Hkv, G, observers, D) and (R, Hkv, S, D) to (R, Hkv, S)."""
        g, gqa = self.geometry, self.backend.gqa
        scores = over_group(newest_logits(q, k, own=False), gqa, 2)
        # The model's own sinks become one logit per KV head like the logits of its keys.
        sinks = g.grouped_sinks
        sink_logits = None if sinks is None else over_group(sinks, gqa, 1)
        mean = added(softmax(scores, sink_logits), 2) / self.observers
        kernel = self.backend.kernel
        return functional.max_pool1d(mean, kernel, stride=1, padding=kernel // 2)


class SharedRKVLayer(SharedCompressing, RKVLayer):
    """One set of tokens for all layers and KV heads."""

    on_device = True


@dataclass(frozen=True, kw_only=True)
class RKV(Dropping):
    """Keeps tokens by attention of the newest queries minus redundancy of keys, and the newest.

    R-KV, arXiv 2505.24133; scores as in Zefan-Cai/R-KV. Attention: logits reduced over the group,
    softmax over all but the last `window` tokens, mean over the last `window` queries, maximum
    over `kernel` neighbours. Redundancy: softmax of the mean cosine with all keys, where every
    key leaves the newest one similar to it out of account, so that one of each kind survives. Where
    it has none, the authors leave out the oldest; here nothing. They grow to budget + buffer tokens
    and compress to the budget; here a row that reaches it is compressed to budget - buffer, after a
    prompt too. Neighbours are those in the text; after a cut theirs are, but for SGLang, by score.

    Args:
        budget: tokens a decode query may read, current token included; at least 11 with a window
            of 8.
        window: newest tokens kept, whose queries score the others.
        keep_prompt: the prompt stays; what is cut by default follows from the rest.
        mix: weight of attention, from 0 to 1; redundancy has the rest. The paper's 0.1 by default
            (the code's is 0.07).
        kernel: neighbours over which attention is the maximum, itself included; odd.
        threshold: cosine above which two keys are similar, from 0 to 1.
        gqa: "max" or "mean" of the logits of a KV head's query heads.
        buffer: tokens dropped at once, which is also how many steps lie between two cuts; a quarter
            of the budget, or of what a prompt that stays leaves of it, at most 128, by default.
        shared: the same tokens stay in all layers and KV heads, by the sum over layers of the mean
            score over heads, as in the authors' SGLang, which counts steps up to its first cut.
    """

    name: ClassVar[str] = "rkv"
    source: ClassVar[str] = "R-KV: attention minus redundancy of keys (arXiv 2505.24133)"
    layer_class = RKVLayer
    choices: ClassVar = {"gqa": ("max", "mean")}
    window: int = 8
    mix: float = 0.1
    kernel: int = 7
    threshold: float = 0.5
    gqa: str = "max"
    buffer: int | None = field(default=None, metadata={"left_out": None})
    shared: bool = field(default=False, metadata={"left_out": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.budget, self.window, self.buffer)
        check_share("mix", self.mix)
        check_share("threshold", self.threshold)
        if check_int("kernel", self.kernel, 1) % 2 == 0:
            raise InvalidValue("kernel", self.kernel, "an odd integer")
        check_flag("shared", self.shared)

    def layer(self, geometry: Geometry) -> Layer:
        return (SharedRKVLayer if self.shared else RKVLayer)(geometry, self)

"""Why a sparse text parts from full attention's: what a step did not read, and put back.

The step at which they part is replayed under both. Keys and values are recorded as the watched
forward computed them, before the method drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from attention import AttentionCache
from attention.contract import (
    Backend,
    Full,
    Geometry,
    InvalidValue,
    KeepAll,
    Layer,
    Step,
    group,
    softmax,
)
from lil.hidden_states import widened
from lil.penalties import Penalty


class StepReads(NamedTuple):
    """What a layer read in a step: positions, (H, S), H Hkv or Hq; their weights, (Hkv, G, S)."""

    read: Tensor
    weights: Tensor


class WatchedLayer(KeepAll):
    """The method's own layer, next to a record of every key and value."""

    keeps_all = rewindable = False  # as a cache knows it
    watching = False  # whether decode steps are recorded
    reads_of_step: StepReads | None = None  # of the last that was
    added: Tensor | None = None  # positions that a step reads in the place of others, (H, S)

    def __init__(self, geometry: Geometry, backend: Watched, inner: Layer) -> None:
        super().__init__(geometry, backend)
        self.inner = inner

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = self.inner.forward(q, k, v, scaling, step)
        self.append(k, v, step)
        if not (step.decode and self.watching):
            return out
        S, g = step.longest, self.geometry
        keys, values = (x.data[0, :, :S].double() for x in (self.k, self.v))
        scores = group(q, g.Hkv, scaling)[0].double() @ keys.transpose(1, 2)
        positions = self.inner.read_positions(0, S)  # -1 for none
        read = torch.zeros(len(positions), S + 1, dtype=torch.bool, device=positions.device)
        read = read.scatter_(1, positions.masked_fill(positions < 0, S), value=True)[:, :S]
        if self.added is not None:
            read = self._swapped(read, self.added, self._weights(scores, read))
        self.reads_of_step = StepReads(read, self._weights(scores, read))
        if self.added is None:
            return out
        return (self.reads_of_step.weights @ values).to(out.dtype).view(out.shape)

    def _weights(self, scores: Tensor, read: Tensor) -> Tensor:
        """Probabilities of the positions read, (Hkv, G, S)."""
        g = self.geometry
        sinks = None if g.grouped_sinks is None else g.grouped_sinks[..., 0]
        unread = ~read.view(g.Hkv, -1, read.shape[-1])
        return softmax(scores.masked_fill(unread, float("-inf")), sinks)

    def _swapped(self, read: Tensor, added: Tensor, weights: Tensor) -> Tensor:
        """`read` with `added`, less as many other positions, those of least weight."""
        per_kv_head = len(read) == self.geometry.Hkv
        worth = weights.sum(1) if per_kv_head else weights.flatten(0, 1)
        if _alike(read):
            worth = worth.sum(0, keepdim=True).expand_as(read)
        fixed = ~read | added
        fixed[:, -1] = True  # the current token
        order = worth.masked_fill(fixed, float("inf")).argsort(dim=-1, stable=True)
        count = (added & ~read).sum(-1, keepdim=True)
        return (read | added) & ~((order.argsort(dim=-1) < count) & ~fixed)

    def copied(self, index: Tensor) -> Self:
        twin = super().copied(index)
        twin.inner = self.inner.copied(index)
        return twin


def _alike(read: Tensor) -> bool:
    """Whether all heads read the same positions."""
    return bool((read == read[:1]).all())


@dataclass(frozen=True, kw_only=True)
class Watched(Backend):
    """Behaves as the method `inner` and records what its layers read, in a batch of one row."""

    name: ClassVar[str] = "watched"
    source: ClassVar[str] = "a method whose steps are watched"
    layer_class = WatchedLayer
    inner: Backend
    budget: int | None = None

    @property
    def exact_until(self) -> float:
        return self.inner.exact_until

    def build(self, geometry: Geometry) -> Layer:
        return WatchedLayer(geometry, self, self.inner.build(geometry))


def parting(full: Sequence[int], sparse: Sequence[int]) -> int | None:
    """The first token at which two texts differ; None where one is the beginning of the other."""
    pairs = enumerate(zip(full, sparse, strict=False))
    return next((at for at, (left, right) in pairs if left != right), None)


class Replay:
    """Forced tokens up to before the step that reads the last, in an empty cache of `Watched`."""

    def __init__(
        self,
        model: Any,
        cache: AttentionCache,
        prompt: Sequence[int],
        forced: Sequence[int],
        penalties: Sequence[Penalty] = (),
    ) -> None:
        self._model, self._prompt, self._forced = model, list(prompt), list(forced)
        self._penalties, self._before = penalties, cache.new(prompts=[len(prompt)])
        self._read(self._before, self._prompt)
        for token in self._forced[:-1]:
            self._read(self._before, [token])

    def step(
        self, added: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[StepReads], AttentionCache]:
        """Scores of the next token (V,), what layers read, each with its `added`, and the cache."""
        cache = self._before.clone()
        layers = [layer for layer in cache.layers if isinstance(layer, WatchedLayer)]
        for at, layer in enumerate(layers):
            layer.watching, layer.added = True, added[at] if added else None
        raw = self._read(cache, self._forced[-1:])
        for layer in layers:
            layer.watching = False
        reads = [layer.reads_of_step for layer in layers if layer.reads_of_step is not None]
        return self._scores(raw, []), reads, cache

    def agreeing(self, cache: AttentionCache, first: int, text: Sequence[int]) -> int:
        """How many tokens from `first`, which a step chose, equal those of `text`."""
        new = [first]
        while new[-1] == text[len(new) - 1] and len(new) < len(text):
            raw = self._read(cache, new[-1:])
            new.append(int(self._scores(raw, new).argmax()))
        return len(new) - (new[-1] != text[len(new) - 1])

    @torch.inference_mode()
    def _read(self, cache: AttentionCache, tokens: Sequence[int]) -> Tensor:
        device = self._model.device
        out = self._model(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=cache.columns + torch.arange(len(tokens), device=device)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return widened(out.logits[:, -1])

    @torch.inference_mode()
    def _scores(self, raw: Tensor, new: Sequence[int]) -> Tensor:
        """With the run's penalties, (V,)."""
        ids = torch.tensor([[*self._prompt, *self._forced, *new]], device=raw.device)
        for original in self._penalties:
            penalty = original.clone()
            penalty(ids[:, : len(self._prompt)], raw.clone())  # learns where the prompt ends
            raw = penalty(ids, raw.clone())
        return raw[0]


def explained(
    model: Any,
    backend: Backend,
    prompt: Sequence[int],
    full: Sequence[int],
    sparse: Sequence[int],
    penalties: Sequence[Penalty],
    keys: Sequence[int] = (1, 4, 16),
    engine: str = "auto",
) -> dict[str, Any]:
    """Why a sparse text departs from full attention's, JSON-able.

    Weight is probability under full attention of what the method did not read. Keys of most missed
    weight are put back, `keys` of them in turn, and as a control as many drawn at random; none
    under a method that turns its keys to other positions.
    """
    at = parting(full, sparse)
    if not at:
        allowed = "texts with a first token in common, which the reading of the prompt chooses"
        raise InvalidValue("run", f"parts at token {at}", allowed)
    prefix, wanted, other = sparse[:at], full[at], sparse[at]
    with Watched(inner=Full()).on(model, engine) as cache:
        full_scores, full_reads, _ = Replay(model, cache, prompt, prefix).step()
    attempts: list[dict[str, Any]] = []
    with Watched(inner=backend).on(model, engine) as cache:
        replay = Replay(model, cache, prompt, prefix, penalties)
        scores, reads, _ = replay.step()
        missed = [  # weight of what each layer did not read, over a head's queries, (Hkv, S)
            (whole.weights * ~part.read.view(len(whole.weights), -1, part.read.shape[-1])).mean(1)
            for whole, part in zip(full_reads, reads, strict=True)
        ]
        for count in () if backend.turns_keys else keys:
            dice = torch.Generator().manual_seed(0)
            drawn = [torch.rand(x.shape, generator=dice).to(x.device) + 1e-6 for x in missed]
            for control, ranks in ((False, missed), (True, drawn)):
                added = [_top(rank, x.read, count) for rank, x in zip(ranks, reads, strict=True)]
                now, _, after = replay.step(added)
                healed = int(now.argmax()) == wanted
                agreed = replay.agreeing(after, wanted, full[at:]) if healed else 0
                attempts.append({"keys": count, "control": control, "healed": healed})
                margin = float(now[wanted] - now[other])
                attempts[-1] |= {"agreed_tokens": agreed, "margin": margin}
    by_token = torch.stack([x.sum(0) for x in missed]).sum(0)
    return {
        "token": at,
        "full_token": wanted,
        "sparse_token": other,
        "reproduced": (int(full_scores.argmax()), int(scores.argmax())) == (wanted, other),
        "margin_full": float(full_scores[wanted] - full_scores[other]),
        "margin_sparse": float(scores[wanted] - scores[other]),
        "missed": float(by_token.sum()) / sum(map(len, missed)),
        "by_token": by_token.tolist(),
        "by_head": [x.tolist() for x in missed],
        "put_back": attempts,
    }


def _top(rank: Tensor, read: Tensor, keys: int) -> Tensor:
    """The unread positions of highest rank, so many for each head, as (H, S)."""
    each = rank.float().repeat_interleave(len(read) // len(rank), dim=0)
    if _alike(read):
        each = each.sum(0, keepdim=True).expand_as(read)
    each = each.masked_fill(read, float("-inf"))
    # No more than can leave: the current token stays.
    count = min(keys, int(read.sum(-1).min()) - 1)
    values, index = each.topk(count, dim=-1)
    return torch.zeros_like(read).scatter_(1, index, values > 0)

"""Why a sparse text parts from full attention's: what a step did not read, and put back.

The step at which they part is replayed under both. Keys and values are recorded as the watched
forward computed them, before the method drops them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attention import AttentionCache
from attention.contract import (
    Backend,
    Counts,
    Full,
    Geometry,
    InvalidValue,
    KeepAll,
    Layer,
    Step,
    group,
    softmax,
)
from lil.penalties import Penalty


@dataclass(frozen=True)
class StepReads:
    """What one layer read in a step.

    Attributes:
        read: which positions, (H, S); H is Hkv or Hq.
        weights: probability of each position among those read, (Hkv, G, S).
    """

    read: Tensor
    weights: Tensor


class WatchedLayer(Layer):
    """The method's own layer, next to a record of every key and value.

    Attributes:
        watching: whether decode steps are recorded.
        reads_of_step: of the last decode step that was.
        added: positions that the next decode step reads in the place of others, (H, S), or None.
        shared: whether all heads read the same positions.
    """

    watching = False
    reads_of_step: StepReads | None = None
    added: Tensor | None = None
    shared = False

    def __init__(self, geometry: Geometry, backend: Watched, inner: Layer) -> None:
        super().__init__(geometry, backend)
        self.inner, self.record = inner, KeepAll(geometry, Full())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        out = self.inner.forward(q, k, v, scaling, step)
        self.record.append(k, v, step)
        if not (step.decode and self.watching):
            return out
        S, g = step.longest, self.geometry
        keys, values = (x.data[0, :, :S].double() for x in (self.record.k, self.record.v))
        scores = group(q, g.Hkv, scaling)[0].double() @ keys.transpose(1, 2)
        read = _mask(self.inner.read_positions(0, S), S)
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
        if self.shared:
            worth = worth.sum(0, keepdim=True).expand_as(read)
        fixed = ~read | added
        fixed[:, -1] = True  # the current token
        order = worth.masked_fill(fixed, float("inf")).argsort(dim=-1, stable=True)
        count = (added & ~read).sum(-1, keepdim=True)
        return (read | added) & ~((order.argsort(dim=-1) < count) & ~fixed)

    # All else is the method's own.

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.decode(q, k, v, scaling, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.inner.prefill(q, k, v, scaling, step)

    def copied(self, index: Tensor) -> Self:
        twin = copy.copy(self)
        twin.inner, twin.record = self.inner.copied(index), self.record.copied(index)
        return twin

    def kept(self, seen: Counts) -> Counts:
        return self.inner.kept(seen)

    def reads(self, seen: Counts) -> Counts:
        return self.inner.reads(seen)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.kept_positions(row, seen)

    def read_positions(self, row: int, seen: int) -> Tensor:
        return self.inner.read_positions(row, seen)


def _mask(positions: Tensor, S: int) -> Tensor:
    """Lists of positions, -1 for none, as (H, S) of which are in them."""
    mask = torch.zeros(len(positions), S + 1, dtype=torch.bool, device=positions.device)
    mask.scatter_(1, positions.masked_fill(positions < 0, S), value=True)
    return mask[:, :S]


@dataclass(frozen=True, kw_only=True)
class Watched(Backend):
    """Behaves as the method `inner` and records what its layers read, in a batch of one row."""

    name: ClassVar[str] = "watched"
    source: ClassVar[str] = "a method whose steps are watched"
    layer_class = WatchedLayer
    inner: Backend
    budget: int | None = None

    def __post_init__(self) -> None:
        self._resolve("budget", self.inner.budget)
        self._resolve("dense_layers", self.inner.dense_layers)
        super().__post_init__()

    @property
    def exact_until(self) -> float:
        return self.inner.exact_until

    @property
    def turns_keys(self) -> bool:
        return self.inner.turns_keys

    @property
    def keeps_all(self) -> bool:
        return False  # full attention never takes over its rows

    @property
    def rewindable(self) -> bool:
        return False

    def params(self) -> dict[str, Any]:
        return {"inner": self.inner.identity()}

    def build(self, geometry: Geometry) -> Layer:
        layer = WatchedLayer(geometry, self, self.inner.build(geometry))
        layer.exact_until = self.exact_until
        return layer


def parting(full: Sequence[int], sparse: Sequence[int]) -> int | None:
    """The first token at which two texts differ; None where one is the beginning of the other."""
    pairs = enumerate(zip(full, sparse, strict=False))
    return next((at for at, (left, right) in pairs if left != right), None)


@dataclass(frozen=True)
class Texts:
    """Token ids of a prompt, and of its texts under full attention and under a method."""

    prompt: tuple[int, ...]
    full: tuple[int, ...]
    sparse: tuple[int, ...]


class Replay:
    """Forced tokens under one backend, in a batch of one, up to before a step.

    The model is patched for this backend and the cache empty. `prompt` and `forced` are token ids;
    the step reads the last of the forced ones.
    """

    def __init__(
        self,
        model: Any,
        cache: AttentionCache,
        prompt: Sequence[int],
        forced: Sequence[int],
        penalties: Sequence[Penalty],
    ) -> None:
        self._model, self._prompt, self._forced = model, list(prompt), list(forced)
        self._penalties, self._before = penalties, cache.new(prompts=[len(prompt)])
        self._read(self._before, self._prompt)
        for token in self._forced[:-1]:
            self._read(self._before, [token])

    def step(
        self, added: Sequence[Tensor] | None = None, shared: Sequence[bool] = ()
    ) -> tuple[Tensor, list[StepReads], AttentionCache]:
        """Scores of the next token (V,), what each layer read, and the cache after the step.

        Args:
            added: by layer, positions that are read in the place of others.
            shared: by layer, whether all heads read the same positions.
        """
        cache = self._before.clone()
        layers = [layer for layer in cache.layers if isinstance(layer, WatchedLayer)]
        for at, layer in enumerate(layers):
            layer.watching = True
            if added is not None:
                layer.added, layer.shared = added[at], shared[at]
        raw = self._read(cache, self._forced[-1:])
        for layer in layers:
            layer.watching, layer.added = False, None
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
        raw: Tensor = out.logits[:, -1]
        return raw.to(torch.promote_types(raw.dtype, torch.float32))

    @torch.inference_mode()
    def _scores(self, raw: Tensor, new: Sequence[int]) -> Tensor:
        """With the run's penalties, (V,)."""
        ids = torch.tensor([[*self._prompt, *self._forced, *new]], device=raw.device)
        for original in self._penalties:
            penalty = original.clone()
            penalty(ids[:, : len(self._prompt)], raw.clone())  # learns where the prompt ends
            raw = penalty(ids, raw.clone())
        return raw[0]


@contextmanager
def replayed(
    model: Any,
    backend: Backend,
    prompt: Sequence[int],
    forced: Sequence[int],
    penalties: Sequence[Penalty],
    engine: str = "auto",
) -> Iterator[Replay]:
    """Forced tokens under a backend, valid in the `with` block."""
    with Watched(inner=backend).on(model, engine) as cache:
        yield Replay(model, cache, prompt, forced, penalties)


def explained(
    model: Any,
    backend: Backend,
    texts: Texts,
    penalties: Sequence[Penalty],
    keys: Sequence[int] = (1, 4, 16),
    engine: str = "auto",
) -> dict[str, Any]:
    """Why a sparse text departs from full attention's, JSON-able.

    Weight is probability under full attention of what the method did not read. Keys of most missed
    weight are put back, `keys` of them in turn, and as a control as many drawn at random.

    Raises:
        InvalidValue: they differ at the first token, which no decode step chose.
    """
    at = parting(texts.full, texts.sparse)
    if not at:
        allowed = "texts with a first token in common, which the reading of the prompt chooses"
        raise InvalidValue("run", f"parts at token {at}", allowed)
    prefix, wanted, other = texts.sparse[:at], texts.full[at], texts.sparse[at]
    with replayed(model, Full(), texts.prompt, prefix, (), engine) as dense:
        full_scores, full_reads, _ = dense.step()
    with replayed(model, backend, texts.prompt, prefix, penalties, engine) as replay:
        scores, reads, _ = replay.step()
        missed = [_missed(*layer) for layer in zip(full_reads, reads, strict=True)]
        shared = [bool((x.read == x.read[:1]).all()) for x in reads]
        attempts: list[dict[str, Any]] = []
        for count in () if backend.turns_keys else keys:
            dice = torch.Generator().manual_seed(0)
            drawn = [torch.rand(x.shape, generator=dice).to(x.device) + 1e-6 for x in missed]
            for control, ranks in ((False, missed), (True, drawn)):
                added = [_top(*layer, count) for layer in zip(ranks, reads, shared, strict=True)]
                now, _, cache = replay.step(added, shared)
                healed = int(now.argmax()) == wanted
                agreed = replay.agreeing(cache, wanted, texts.full[at:]) if healed else 0
                to_the_end = agreed == len(texts.full) - at
                attempt = {"keys": count, "control": control, "healed": healed}
                attempt |= {"agreed_tokens": agreed, "to_the_end": to_the_end}
                attempts.append(attempt | {"margin": float(now[wanted] - now[other])})
    by_token = torch.stack([x.sum(0) for x in missed]).sum(0)
    total, of_prompt = float(by_token.sum()), float(by_token[: len(texts.prompt)].sum())
    turned = "this method turns its keys to other positions"
    return {
        "token": at,
        "full_token": wanted,
        "sparse_token": other,
        "reproduced": (int(full_scores.argmax()), int(scores.argmax())) == (wanted, other),
        "margin_full": float(full_scores[wanted] - full_scores[other]),
        "margin_sparse": float(scores[wanted] - scores[other]),
        "missed": total / sum(map(len, missed)),
        "missed_in_prompt": of_prompt / total if total else None,
        "by_token": by_token.tolist(),
        "by_head": [x.tolist() for x in missed],
        "put_back": attempts,
        "not_put_back": turned if backend.turns_keys else None,
    }


def _missed(full: StepReads, sparse: StepReads) -> Tensor:
    """Weight of what one layer did not read, the mean over a KV head's query heads, (Hkv, S)."""
    Hkv, _, S = full.weights.shape
    return (full.weights * ~sparse.read.view(Hkv, -1, S)).mean(1)


def _top(rank: Tensor, reads: StepReads, shared: bool, keys: int) -> Tensor:
    """The unread positions of highest rank, so many for each head, as (H, S)."""
    H, S = reads.read.shape
    each = rank.float().repeat_interleave(H // len(rank), dim=0)
    if shared:
        each = each.sum(0, keepdim=True).expand(H, S)
    each = each.masked_fill(reads.read, float("-inf"))
    # No more than can leave: the current token stays.
    count = min(keys, int(reads.read.sum(-1).min()) - 1)
    values, index = each.topk(count, dim=-1)
    return torch.zeros_like(reads.read).scatter_(1, index, values > 0)

"""The step at which a sparse text parts from full attention's, replayed under both and healed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention import AttentionCache
from attention.contract import Backend, Full, InvalidValue
from experiments.why.watched import Look, Watched, WatchedLayer
from lil.penalties import Penalty


def parting(full: Sequence[int], sparse: Sequence[int]) -> int | None:
    """The first token at which two texts differ; None where one is the beginning of the other."""
    pairs = enumerate(zip(full, sparse, strict=False))
    return next((at for at, (one, other) in pairs if one != other), None)


@dataclass(frozen=True)
class Texts:
    """Two stored texts of one prompt.

    Args:
        prompt: its token ids.
        full: generated under full attention.
        sparse: generated under the method.
    """

    prompt: tuple[int, ...]
    full: tuple[int, ...]
    sparse: tuple[int, ...]


class Replay:
    """Forced tokens under one backend, in a batch of one, up to before a step.

    Args:
        model: of transformers, patched for this backend.
        cache: empty.
        prompt: token ids.
        given: generated tokens before the step; the step reads the last of them.
        penalties: of the run.
    """

    def __init__(
        self,
        model: Any,
        cache: AttentionCache,
        prompt: Sequence[int],
        given: Sequence[int],
        penalties: Sequence[Penalty],
    ) -> None:
        self.model, self.prompt, self.given = model, list(prompt), list(given)
        self._penalties = penalties
        self._before = cache.new(prompts=[len(prompt)])
        self._read(self._before, self.prompt)
        for token in self.given[:-1]:
            self._read(self._before, [token])

    def step(
        self, put: Sequence[Tensor] | None = None, shared: Sequence[bool] = ()
    ) -> tuple[Tensor, list[Look], AttentionCache]:
        """Scores of the next token (V,), what each layer read, and the cache behind the step.

        Args:
            put: by layer, positions that are read in the place of others.
            shared: by layer, whether one set serves all heads.
        """
        cache = self._before.clone()
        layers = watched(cache)
        for at, layer in enumerate(layers):
            layer.watching = True
            if put is not None:
                layer.put, layer.shared = put[at], shared[at]
        raw = self._read(cache, self.given[-1:])
        looks = [layer.look for layer in layers if layer.look is not None]
        for layer in layers:
            layer.watching, layer.put = False, None
        return self._scores(raw, []), looks, cache

    def agreeing(self, cache: AttentionCache, first: int, text: Sequence[int]) -> int:
        """How many tokens, `first` among them, are those of `text` before they part from it."""
        new = [first]
        while new[-1] == text[len(new) - 1] and len(new) < len(text):
            raw = self._read(cache, new[-1:])
            new.append(int(self._scores(raw, new).argmax()))
        return len(new) - (new[-1] != text[len(new) - 1])

    @torch.inference_mode()
    def _read(self, cache: AttentionCache, tokens: Sequence[int]) -> Tensor:
        device = self.model.device
        ids = torch.tensor([list(tokens)], device=device)
        place = cache.columns + torch.arange(len(tokens), device=device)[None]
        out = self.model(
            input_ids=ids,
            position_ids=place,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        raw: Tensor = out.logits[:, -1]
        return raw.to(torch.promote_types(raw.dtype, torch.float32))

    @torch.inference_mode()
    def _scores(self, raw: Tensor, new: Sequence[int]) -> Tensor:
        """With the run's penalties, (V,)."""
        ids = torch.tensor([[*self.prompt, *self.given, *new]], device=raw.device)
        for one in self._penalties:
            penalty = one.clone()
            penalty(ids[:, : len(self.prompt)], raw.clone())  # tells prompt from generated tokens
            raw = penalty(ids, raw.clone())
        return raw[0]


def watched(cache: AttentionCache) -> list[WatchedLayer]:
    """The layers of a cache under `Watched`."""
    return [layer for layer in cache.layers if isinstance(layer, WatchedLayer)]


@contextmanager
def replayed(
    model: Any,
    backend: Backend,
    prompt: Sequence[int],
    given: Sequence[int],
    penalties: Sequence[Penalty],
    engine: str = "auto",
) -> Iterator[Replay]:
    """Forced tokens under a backend, valid in the `with` block."""
    with Watched(inner=backend).on(model, engine) as cache:
        yield Replay(model, cache, prompt, given, penalties)


@dataclass(frozen=True)
class Missed:
    """Weight under full attention of what the method did not read.

    Attributes:
        weights: by layer, the mean over a KV head's query heads, (Hkv, S).
        shared: by layer, whether one set served all heads.
    """

    weights: tuple[Tensor, ...]
    shared: tuple[bool, ...]

    @classmethod
    def of(cls, full: Sequence[Look], sparse: Sequence[Look]) -> Missed:
        """From what the layers read under full attention and under the method."""
        weights, shared = [], []
        for one, other in zip(full, sparse, strict=True):
            Hkv, _, S = one.weights.shape
            unread = ~other.read.view(Hkv, -1, S)
            weights.append((one.weights * unread).mean(1))
            shared.append(bool((other.read == other.read[:1]).all()))
        return cls(tuple(weights), tuple(shared))

    def by_token(self) -> Tensor:
        """Summed over layers and KV heads, (S,)."""
        return torch.stack([x.sum(0) for x in self.weights]).sum(0)

    def most(self, keys: int, sparse: Sequence[Look]) -> list[Tensor]:
        """By layer, so many unread positions of each set with most missed weight."""
        return self._chosen([x.float() for x in self.weights], keys, sparse)

    def drawn(self, keys: int, sparse: Sequence[Look], seed: int) -> list[Tensor]:
        """By layer, so many unread positions of each set drawn evenly."""
        dice = torch.Generator().manual_seed(seed)
        ranks = [torch.rand(x.shape, generator=dice).to(x.device) + 1e-6 for x in self.weights]
        return self._chosen(ranks, keys, sparse)

    def _chosen(self, ranks: Sequence[Tensor], keys: int, sparse: Sequence[Look]) -> list[Tensor]:
        found = []
        for rank, look, shared in zip(ranks, sparse, self.shared, strict=True):
            H, S = look.read.shape
            each = rank.repeat_interleave(H // len(rank), dim=0)
            if shared:
                each = each.sum(0, keepdim=True).expand(H, S)
            each = each.masked_fill(look.read, float("-inf"))
            # No more than can leave: the current token stays.
            most = min(keys, int(look.read.sum(-1).min()) - 1)
            values, index = each.topk(most, dim=-1)
            put = torch.zeros_like(look.read)
            found.append(put.scatter_(1, index, values > 0))
        return found


def explained(
    model: Any,
    backend: Backend,
    texts: Texts,
    penalties: Sequence[Penalty],
    full_penalties: Sequence[Penalty] = (),
    keys: Sequence[int] = (1, 4, 16),
    seed: int = 0,
    engine: str = "auto",
) -> dict[str, Any] | None:
    """Why a text parted, JSON-able; None where it did not.

    Args:
        model: of transformers.
        backend: of the sparse text.
        texts: both.
        penalties, full_penalties: of the sparse run, and of full attention's.
        keys: how many are put back, by turns.
        seed: of the keys drawn beside them.
        engine: as `Backend.on` takes it.

    Raises:
        InvalidValue: they part at the first token, which no decode step chose.
    """
    at = parting(texts.full, texts.sparse)
    if at is None:
        return None
    if at == 0:
        allowed = "texts with a first token in common, which the reading of the prompt chooses"
        raise InvalidValue("run", "parts at token 0", allowed)
    prefix, wanted, other = texts.sparse[:at], texts.full[at], texts.sparse[at]
    with replayed(model, Full(), texts.prompt, prefix, full_penalties, engine) as dense:
        full_scores, full_looks, _ = dense.step()
    with replayed(model, backend, texts.prompt, prefix, penalties, engine) as replay:
        scores, looks, _ = replay.step()
        missed = Missed.of(full_looks, looks)
        tries: list[dict[str, Any]] = []
        for count in () if backend.turns_keys else keys:
            for control in (False, True):
                put = missed.drawn(count, looks, seed) if control else missed.most(count, looks)
                now, _, cache = replay.step(put, missed.shared)
                first = int(now.argmax())
                healed = first == wanted
                agreed = replay.agreeing(cache, first, texts.full[at:]) if healed else 0
                tries.append(
                    {
                        "keys": count,
                        "control": control,
                        "healed": healed,
                        "agreed_tokens": agreed,
                        "to_the_end": agreed == len(texts.full) - at,
                        "margin": float(now[wanted] - now[other]),
                    }
                )
    chosen = int(full_scores.argmax()), int(scores.argmax())
    inside = missed.by_token()
    total = float(inside.sum())
    of_prompt = float(inside[: len(texts.prompt)].sum())
    return {
        "token": at,
        "full_token": wanted,
        "sparse_token": other,
        "reproduced": chosen == (wanted, other),
        "margin_full": float(full_scores[wanted] - full_scores[other]),
        "margin_sparse": float(scores[wanted] - scores[other]),
        "missed": total / sum(len(x) for x in missed.weights),
        "missed_in_prompt": of_prompt / total if total else None,
        "by_token": inside.tolist(),
        "by_head": [x.tolist() for x in missed.weights],
        "put_back": tries,
        "not_put_back": "this method turns its keys to other positions"
        if backend.turns_keys
        else None,
    }

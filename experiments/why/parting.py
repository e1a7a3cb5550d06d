"""The step at which a sparse text departs from full attention's, replayed under both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention import AttentionCache
from attention.contract import Backend, Full, InvalidValue
from experiments.why.watched import StepReads, Watched, WatchedLayer
from lil.penalties import Penalty


def parting(full: Sequence[int], sparse: Sequence[int]) -> int | None:
    """The first token at which two texts differ; None where one is the beginning of the other."""
    pairs = enumerate(zip(full, sparse, strict=False))
    return next((at for at, (left, right) in pairs if left != right), None)


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
        forced: generated tokens before the step; the step reads the last of them.
        penalties: of the run.
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
        self._penalties = penalties
        self._before = cache.new(prompts=[len(prompt)])
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
        """How many tokens, `first` among them, equal those of `text` before the first that differs.

        Args:
            cache: after the step that chose `first`; it is read on.
        """
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
    seed: int = 0,
    engine: str = "auto",
) -> dict[str, Any]:
    """Why a text departs from full attention's, JSON-able.

    Weight is probability under full attention of what the method did not read. Keys of most missed
    weight are put back, and as a control as many drawn at random.

    Args:
        model: of transformers.
        backend: of the sparse text.
        texts: two that differ.
        penalties: of the sparse run.
        keys: numbers of keys to put back, in turn.
        seed: of the keys drawn as a control.
        engine: as `Backend.on` takes it.

    Raises:
        InvalidValue: they differ at the first token, which no decode step chose.
    """
    at = parting(texts.full, texts.sparse)
    assert at is not None
    if at == 0:
        allowed = "texts with a first token in common, which the reading of the prompt chooses"
        raise InvalidValue("run", "parts at token 0", allowed)
    prefix, wanted, other = texts.sparse[:at], texts.full[at], texts.sparse[at]
    with replayed(model, Full(), texts.prompt, prefix, (), engine) as dense:
        full_scores, full_reads, _ = dense.step()
    with replayed(model, backend, texts.prompt, prefix, penalties, engine) as replay:
        scores, reads, _ = replay.step()
        missed = [_missed(*layer) for layer in zip(full_reads, reads, strict=True)]
        shared = [bool((x.read == x.read[:1]).all()) for x in reads]
        attempts: list[dict[str, Any]] = []
        for count in () if backend.turns_keys else keys:
            dice = torch.Generator().manual_seed(seed)
            drawn = [torch.rand(x.shape, generator=dice).to(x.device) + 1e-6 for x in missed]
            for control, ranks in ((False, missed), (True, drawn)):
                added = [_top(*layer, count) for layer in zip(ranks, reads, shared, strict=True)]
                now, _, cache = replay.step(added, shared)
                first = int(now.argmax())
                healed = first == wanted
                agreed = replay.agreeing(cache, first, texts.full[at:]) if healed else 0
                attempts.append(
                    {
                        "keys": count,
                        "control": control,
                        "healed": healed,
                        "agreed_tokens": agreed,
                        "to_the_end": agreed == len(texts.full) - at,
                        "margin": float(now[wanted] - now[other]),
                    }
                )
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

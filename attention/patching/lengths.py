"""Rotary embeddings that follow the length of a text, as LongRoPE and dynamic NTK do.

Every token is turned as the model does where its row is alone and the first text; by themselves
they follow the longest row of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, local
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from attention.core.compiling import uncompiled
from attention.core.ropes import follows_length
from attention.core.step import Counts
from attention.patching.cache import AttentionCache
from attention.patching.survey import text_of

# Where a config's embedding says beyond how many tokens its frequencies change.
_ORIGINAL = "original_max_position_embeddings"


def following(model: PreTrainedModel) -> list[nn.Module]:
    """The rotary embeddings of a model whose frequencies follow the length of a text."""
    return [module for module in model.base_model.modules() if _kinds(module)]


def _kinds(module: Any) -> list[str]:
    """The kinds of an embedding, one for each kind of layer, that follow lengths."""
    kind = getattr(module, "rope_type", None)
    kinds = kind.values() if isinstance(kind, dict) else [kind]
    return [str(x) for x in kinds if follows_length(x)]


def _tables(config: Any) -> list[dict[str, Any]]:
    """Where a config names switches: its embedding's parameters, or those of kinds of layers."""
    tables = (config.rope_parameters, *config.rope_parameters.values())
    return [table for table in tables if isinstance(table, dict) and _ORIGINAL in table]


def _bounds(module: Any) -> tuple[int, float]:
    """The lengths between which frequencies change."""
    if any(kind != "longrope" for kind in _kinds(module)):
        return int(module.config.max_position_embeddings), np.inf
    switches = [table[_ORIGINAL] for table in _tables(module.config)]
    return min(switches), max(switches) + 1


def switch_of(model: PreTrainedModel) -> int | None:
    """Tokens beyond which `generate` reads a text anew, as with Phi-3; None where it never does."""
    bounds = [_bounds(module) for module in following(model) if "longrope" in _kinds(module)]
    if not bounds:
        return None
    switch = min(bounds)[0]
    # The cache of so many tokens, which is left out of the inputs of the next one.
    past: Any = SimpleNamespace(get_seq_length=lambda *_: switch, is_compileable=False)
    ids, at = text_of(model, switch + 1), torch.tensor([switch])  # older versions look at `at`
    more: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "cache_position": at}
    inputs = model.prepare_inputs_for_generation(ids, past_key_values=past, use_cache=True, **more)
    return switch if inputs.get("past_key_values") is None else None


@contextmanager
def switching_at(modules: Sequence[Any], tokens: int) -> Iterator[None]:
    """In this block frequencies change beyond so many tokens, so that short texts show it."""
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
    try:
        for module in modules:
            module.config = copy.deepcopy(module.config)
            module.config.max_position_embeddings = tokens
            for table in _tables(module.config):
                table[_ORIGINAL] = tokens
            if hasattr(module.config, _ORIGINAL):  # it is copied there at times
                setattr(module.config, _ORIGINAL, tokens)
            module.original_max_seq_len = module.max_seq_len_cached = tokens
        yield
    finally:
        for module, attributes, buffers in before:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


class RowLengths:
    """Lets rotary embeddings follow the length of each row, in forwards through our caches."""

    def __init__(self) -> None:
        self._now = local()  # the lengths of a thread's forward
        # Forwards change an embedding: one thread at a time.
        self._lock = RLock()

    def __deepcopy__(self, memo: Any) -> RowLengths:
        return self  # of a model that is copied inside a block

    def hooks(self, model: PreTrainedModel, always: bool) -> list[RemovableHandle]:
        """Hooks that do so; none where nothing follows lengths and no cache must `always` begin."""
        turn = [x.register_forward_hook(self._turn, with_kwargs=True) for x in following(model)]
        if not turn and not always:
            return []
        return [model.base_model.register_forward_pre_hook(self._begin, with_kwargs=True), *turn]

    @uncompiled
    def _begin(self, _model: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
        tokens = kwargs.get("input_ids", inputs[0] if inputs else None)
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        cache, self._now.lengths = kwargs.get("past_key_values"), None
        if isinstance(cache, AttentionCache) and isinstance(tokens, Tensor):
            mask = kwargs.get("attention_mask")
            self._now.lengths = cache.begin(tokens.shape[0], tokens.shape[1], mask)

    def _turn(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """cos and sin of each token, by the module's own forwards, one for each length."""
        lengths: Counts | None = getattr(self._now, "lengths", None)
        if lengths is None:
            return output
        named = "position_ids" in kwargs
        positions: Tensor = kwargs["position_ids"] if named else args[1]

        def own(at: Tensor) -> Any:
            if named:
                return module.forward(*args, **{**kwargs, "position_ids": at})
            return module.forward(args[0], at, *args[2:], **kwargs)

        first = positions.new_zeros(1, 1)
        lengths = np.clip(lengths, *_bounds(module)).astype(np.int64)
        with self._lock:
            for length in np.unique(lengths).tolist():
                here = torch.from_numpy(lengths == length).to(positions.device)
                own(first)  # dynamic NTK forgets longer texts
                # A last column makes the text so long.
                end = positions.new_full((len(here), 1), length - 1)
                pair = own(torch.cat((torch.where(here, positions, 0), end), dim=1))
                pairs = zip(pair, output, strict=True)
                output = tuple(torch.where(here[..., None], x[:, :-1], y) for x, y in pairs)
            own(first)
        return output

"""Patching a model through transformers' public seams, and restoring it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.core.compiling import uncompiled
from attention.engines import select
from attention.errors import InvalidValue
from attention.families import check_family
from attention.layers.layer import Method
from attention.patching.cache import ATTENTION, TAG, AttentionCache
from attention.patching.lengths import RowLengths
from attention.patching.probe import batched, probed
from attention.patching.survey import Anatomy, Session, attending

_PREPARE = "prepare_inputs_for_generation"


@uncompiled
def attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function transformers calls: hands everything to the cache that got the key.

    Keys and values are as the cache returned them, the mask (B, past + T) as `padding_mask` did;
    `s_aux` are the model's own further logits in each softmax, (Hq,). To (B, T, Hq, D), no weights.
    """
    cache, layer = getattr(key, TAG, (None, 0))
    if not isinstance(cache, AttentionCache):
        allowed = "the cache that `with backend.on(model) as cache` yields, or its cache.new()"
        raise InvalidValue("past_key_values", None, allowed)
    cache.handed = False
    delattr(key, TAG)
    if module.config is not cache.session.config:
        raise cache.misplaced()
    if dropout := kwargs.get("dropout"):
        raise InvalidValue("dropout", dropout, "0: call model.eval() first")
    if kwargs.get("output_attentions"):
        raise InvalidValue("output_attentions", True, "False: weights are not kept")
    index = cache.session.anatomy.softmax.index(layer)
    own = cache.session.anatomy.window_arguments[index]
    if kwargs.get("sliding_window", own) != own:
        allowed = f"{own}, as the model's config had it when the block was entered"
        raise InvalidValue("sliding_window", kwargs["sliding_window"], allowed)
    if torch.is_grad_enabled() and query.requires_grad:
        allowed = "a call under torch.no_grad(): the cached state carries no gradient"
        raise InvalidValue("gradients", "on", allowed)
    scaling = query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else kwargs["scaling"]
    more = attention_mask, scaling, kwargs.get("position_ids"), kwargs.get("s_aux")
    out = cache.attend(index, query, key, value, *more).contiguous()
    return out, None  # as other attention functions give it: some models view it


@uncompiled
def announce(_model: Any, _inputs: Any, kwargs: dict[str, Any]) -> None:
    """Called before each forward of a patched model: passes the caller's flags to the cache."""
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttentionCache):
        if kwargs.get("use_cache") is False:
            raise InvalidValue("use_cache", False, "True with a cache in past_key_values")
        cache.expect(kwargs.get("logits_to_keep"))


def padding_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """The mask function transformers calls: passes the two-dimensional padding mask on as it is."""
    return attention_mask


@uncompiled
def ended(_model: Any, _inputs: Any, kwargs: dict[str, Any], _output: Any) -> None:
    """Called behind each forward of layers with other states that came to its end."""
    cache = kwargs.get("past_key_values")
    if isinstance(cache, AttentionCache):
        cache.end()


def prepared(own: Any, input_ids: Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
    """The inputs that `generate` asks a model for which reads its text anew beyond its switch.

    It leaves the cache out there; ours is emptied, and also where a padded row comes to the switch.
    """
    cache = past_key_values if isinstance(past_key_values, AttentionCache) else None
    if cache is not None and cache.outgrown:
        past_key_values = kwargs["next_sequence_length"] = None
    inputs = own(input_ids, past_key_values=past_key_values, **kwargs)
    if cache is not None and inputs.get("past_key_values") is None:
        cache.restart()
        inputs["past_key_values"] = cache
    return inputs


def check_model(model: Any) -> None:
    """Refuse, by name and before any compute, what cannot work."""
    if not isinstance(model, PreTrainedModel):
        inner = "; of an adapted one, as PEFT makes, model.get_base_model()"
        allowed = "a transformers PreTrainedModel" + inner * hasattr(model, "get_base_model")
        raise InvalidValue("model", type(model).__name__, allowed)
    check_family(model.config)
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise InvalidValue("model", devices, "a model on one device")


def check_method(backend: Method, session: Session) -> None:
    """Refuse a method that a model has no layer for, or whose keys it cannot turn."""
    backend.check_heads(session.anatomy.heads, session.anatomy.groups)
    full = [i for i, window in enumerate(session.windows) if window is None]
    if not full:
        return
    if backend.dense_layers > full[-1]:
        last = f"layer {full[-1]} is the model's last that {backend.name} can use"
        raise InvalidValue("dense_layers", backend.dense_layers, f"at most {full[-1]}: {last}")
    backend.choosing_layers(session.windows)
    backend.layer_budgets(session.windows)
    if not backend.turns_keys:
        return
    anatomy = session.anatomy
    for i in full:
        session.ropes[i].require_fixed(backend.name)
        if anatomy.turns[i] == "other":
            allowed = f"keys whose first half turns with their second one, for {backend.name}: "
            allowed += f"those of layer {anatomy.softmax[i]} change with their position otherwise"
            raise InvalidValue("model", session.family, allowed)


def through(
    model: PreTrainedModel, full: Method, anatomy: Anatomy, parts: Sequence[int], turn: int
) -> list[Tensor]:
    """What a model makes of the probe's texts through an `AttentionCache`; see `batched`."""
    with Patch(model, anatomy), closing(Session(full, full, model, "torch", anatomy)) as session:
        return batched(model, AttentionCache(session), parts, turn)


@contextmanager
def patched(backend: Method, full: Method, model: Any, engine: str) -> Iterator[AttentionCache]:
    """Let `model` attend through `backend` inside the block; see `Backend.on`."""
    check_model(model)
    engine = select(engine, model.device, model.dtype).name
    with _LOCK:
        shared, tried = _PATCHES.get(model), partial(through, model, full)
        anatomy = probed(model, tried) if shared is None else shared.anatomy
        session = Session(backend, full, model, engine, anatomy)
        check_method(backend, session)
        if not math.isinf(backend.exact_until) and None not in session.windows:
            what = f"every layer of this {model.config.model_type} is the model's own sliding "
            what += f"attention (config.sliding_window): {backend.name} has no layer to act on"
            warnings.warn(what, stacklevel=3)
        if shared is None:
            shared = _PATCHES[model] = Patch(model, anatomy)
        shared.blocks += 1
    try:
        yield AttentionCache(session)
    finally:
        session.close()
        with _LOCK:
            shared.blocks -= 1
            if not shared.blocks:
                del _PATCHES[model]
                shared.close()


class Patch(ExitStack):
    """What the open `blocks` on one model share: made by the first, undone by the last.

    They may overlap in any order and in several threads: keys tell which cache a forward has.
    """

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy) -> None:
        super().__init__()
        # Both are stateless and change no model until a config names them.
        AttentionInterface.register(ATTENTION, attention_forward)
        AttentionMaskInterface.register(ATTENTION, padding_mask)
        self.blocks, self.anatomy = 0, anatomy
        self.enter_context(attending(model, ATTENTION))
        own = vars(model)
        if anatomy.switch is not None:
            self.callback(own.update, {name: own[name] for name in own.keys() & {_PREPARE}})
            self.callback(own.pop, _PREPARE)
            own[_PREPARE] = partial(prepared, model.prepare_inputs_for_generation)
        hooks = [model.register_forward_pre_hook(announce, with_kwargs=True)]
        hooks += RowLengths().hooks(model, bool(anatomy.states))
        if anatomy.states:
            hooks.append(model.base_model.register_forward_hook(ended, with_kwargs=True))
        for hook in hooks:
            self.callback(hook.remove)


# A model is looked up here and not by an attribute of its own, which a copy of it would have too.
_PATCHES: WeakKeyDictionary[PreTrainedModel, Patch] = WeakKeyDictionary()
# Reentrant: collecting garbage may close a stream that was left half way, and with it a block.
_LOCK = RLock()

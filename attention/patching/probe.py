"""Whether a model attends the same through our cache as by itself, tried on a few tokens.

Behind a `survey`, two short texts are read by the model itself, each alone, and in one padded batch
under full attention through our cache: a prompt, a second part of it, and a decode step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel

from attention.errors import InvalidValue
from attention.patching.lengths import following, switch_of, switching_at
from attention.patching.survey import Anatomy, attending, forward, survey, text_of

#: The largest difference of hidden states, as a part of their length, that is rounding of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
# How often a model in half precision is given other texts: a router may take the other one of two
# experts that are alike where sums round otherwise.
_TRIES = 3
# Tokens of the longer text: a prompt, its second part, and a decode step; the prompt in one part.
_PARTS, _WHOLE = (6, 2, 1), (8, 1)
_PADDING = 2  # before the shorter one
# Where a rope that follows lengths is made to switch: beyond both texts, and between them.
_FAR, _NEAR = 64, 7


def _texts(model: PreTrainedModel, turn: int) -> list[Tensor]:
    lengths = sum(_PARTS), sum(_PARTS) - _PADDING
    return [text_of(model, n, 2 * turn + row) for row, n in enumerate(lengths)]


def _read(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, parts: Sequence[int], cache: Any
) -> Tensor:
    """Hidden states of texts (B, n) that are read in forwards of so many columns, (B, n, ...)."""
    positions, outputs, end = (mask.cumsum(-1) - 1).clamp(min=0), [], 0
    for part in parts:
        here, end = slice(end, end + part), end + part
        outputs.append(forward(model, ids[:, here], positions[:, here], mask[:, :end], cache))
    return torch.cat(outputs, dim=1)


def own(model: PreTrainedModel, turn: int, parts: Sequence[int] = ()) -> list[Tensor]:
    """What the model itself makes of the two texts, each alone, (1, n, ...); whole, or in parts."""
    outputs = []
    for ids in _texts(model, turn):
        cache = DynamicCache(config=model.config) if parts else None
        sizes = ids.shape[1] - sum(parts[1:]), *parts[1:]
        outputs.append(_read(model, ids, torch.ones_like(ids), sizes, cache))
    return outputs


def batched(model: PreTrainedModel, cache: Any, parts: Sequence[int], turn: int) -> list[Tensor]:
    """The same through a cache, of both texts in one padded batch."""
    ids = torch.cat([pad(x, (sum(_PARTS) - x.shape[1], 0)) for x in _texts(model, turn)])
    mask = torch.ones_like(ids)
    mask[1, :_PADDING] = 0
    every = _read(model, ids, mask, parts, cache)
    return [every[:1], every[1:, _PADDING:]]


def difference_of(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The largest difference between hidden states, as a part of the length of one, or infinity."""
    x, y = (torch.cat(list(each), dim=1).double() for each in (left, right))
    difference = (x - y).norm(dim=-1) / y.norm(dim=-1).clamp(min=1e-30)
    return float(difference.nan_to_num(torch.inf).max())


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, no gradients and no hooks, whatever the caller has; all come back."""
    training = [module for module in model.modules() if module.training]
    every = [x for m in model.modules() for x in (m._forward_pre_hooks, m._forward_hooks)]
    hooks = [(registered, dict(registered)) for registered in every if registered]
    accelerators = [model.device] if model.device.type == "cuda" else []
    for module in training:
        module.training = False
    for registered, _ in hooks:  # in place: who removes a hook later knows it by its dictionary
        registered.clear()
    drawing = torch.random.fork_rng(devices=accelerators)
    try:
        with drawing, torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
        for registered, before in hooks:
            new = dict(registered)
            registered.clear()
            registered.update(before | new)


#: Reads two texts through our cache, in forwards of so many columns, as `batched` does.
Through = Callable[[Anatomy, Sequence[int], int], list[Tensor]]


def probed(model: PreTrainedModel, through: Through) -> Anatomy:
    """What is known of a model's attention; probed at first use, and the model left as it was.

    It is remembered while the model lives and its config, dtypes and device stay the same. A
    refusal may depend on weights too, so none is remembered.
    """
    config = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    state = (config, model.device, frozenset(x.dtype for x in model.parameters()))
    if model not in _KNOWN or _KNOWN[model][0] != state:
        _KNOWN[model] = state, _found(model, through)
    return _KNOWN[model][1]


def _found(model: PreTrainedModel, through: Through) -> Anatomy:
    family, tries = model.config.model_type, _TRIES if model.dtype.itemsize == 2 else 1
    try:
        with undisturbed(model):
            anatomy = replace(survey(model), switch=switch_of(model))
            for turn in range(tries):
                difference, parts = _differs(model, anatomy, through, turn)
                if difference <= TOLERANCE.get(model.dtype, 0.0):
                    return replace(anatomy, difference=difference, parts=parts)
    except (InvalidValue, torch.OutOfMemoryError):
        raise
    except (LookupError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        # What a user gives is a cache, whatever the class is called that the probe tries.
        reason = re.sub(r"<class '[^']*'>|'\w+' object", "our cache", reason)
        why = f"{type(error).__name__}: {reason}"
        if isinstance(error, AttributeError) and not hasattr(Cache, "get_conv_state"):
            why += "; newer versions of transformers keep more states in a cache"
        allowed = f"a model that runs through our cache: this one stops with {why}"
        raise InvalidValue("model", family, allowed) from error
    allowed = "a model that attends through our cache as by itself: hidden states of a few tokens "
    raise InvalidValue("model", family, f"{allowed}differ by {difference:.2g} of their length")


def _differs(
    model: PreTrainedModel, anatomy: Anatomy, through: Through, turn: int
) -> tuple[float, bool]:
    """The difference that two texts show, and whether they may be read in parts.

    Where a rope follows lengths, below its switch and across it.
    """
    ropes, limit = following(model), TOLERANCE.get(model.dtype, 0.0)
    plain = model.config._attn_implementation
    if plain == "flex_attention":  # compiled for each shape, which would take a minute
        plain = "sdpa" if model._supports_sdpa else "eager"

    def ours(parts: Sequence[int], switch: int) -> list[Tensor]:
        known = anatomy if anatomy.switch is None else replace(anatomy, switch=switch)
        return through(known, parts, turn)

    with attending(model, plain), switching_at(ropes, _FAR):
        plainly, in_parts = own(model, turn), True
        if not all(bool(x.isfinite().all()) for x in plainly):
            allowed = "weights with which hidden states of a few tokens are finite"
            raise InvalidValue("model", model.config.model_type, allowed)
        difference = difference_of(ours(_PARTS, _FAR), plainly)
        if difference > limit and anatomy.states:
            # Whether it is only that the model itself forgets its states between two parts.
            states = ours(_WHOLE, _FAR)
            whole = difference_of(states, plainly)
            if whole > limit:  # its decode steps may round otherwise than its prefill
                whole = difference_of(states, own(model, turn, _WHOLE))
            if whole <= limit:
                difference, in_parts = whole, False
    if ropes and difference <= limit:
        with attending(model, plain), switching_at(ropes, _NEAR):
            across = difference_of(ours(_WHOLE, _NEAR), own(model, turn, _WHOLE))
            difference = max(difference, across)
    return difference, in_parts


# The anatomy of each model, with its config, device and dtypes then.
_KNOWN: WeakKeyDictionary[PreTrainedModel, tuple[Any, Anatomy]] = WeakKeyDictionary()

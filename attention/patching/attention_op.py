"""Attention as one operator of torch, so that a compiler takes the rest of a decode step whole."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from attention.patching.cache import AttentionCache
from attention.patching.patched import announce, padding_mask
from attention.patching.recurrent import StateCache

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Raised with every change of what is compiled: pieces of another version are not used.
VERSION = 3
# What the config of a model that is being exported calls its attention.
_ATTENTION = "lil_attention_operator"
# Rows of the exported example: any number but 1, which the exporter would take for a constant.
_ROWS = 4


@dataclass
class Call:
    """One forward that runs compiled: the cache it goes through, and what went wrong in it.

    C++ between the operator and the caller of the step passes no exception of Python on: the first
    is raised when the step has come back.
    """

    cache: AttentionCache
    positions: Tensor
    error: BaseException | None = None


#: The forward that runs in this thread. A graph holds tensors and numbers, and no cache.
CALL: ContextVar[Call] = ContextVar("lil_compiled_call")


@functools.cache
def operator() -> Any:
    """`lil::attend`, defined at its first use.

    q (B, Hq, 1, D), k and v (B, Hkv, 1, D) to (B, 1, Hq, D); state is that of the cache in `CALL`.
    """
    library: Any = torch.library.Library("lil", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(
        "attend(Tensor q, Tensor k, Tensor v, float scaling, int layer, Tensor? sinks) -> Tensor"
    )
    for device in ("CPU", "CUDA"):
        library.impl("attend", _attend, device)
    torch.library.register_fake("lil::attend", empty_output, lib=library)
    operator.library = library  # type: ignore[attr-defined]  # it goes when nobody holds it
    return torch.ops.lil.attend.default


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, layer: int, sinks: Tensor | None
) -> Tensor:
    call = CALL.get()
    if call.error is None:
        try:
            more = None, scaling, call.positions, sinks
            return call.cache.attend(layer, q, k, v, *more).contiguous()
        except BaseException as error:
            call.error = error
    return empty_output(q, k, v, scaling, layer, sinks).zero_()


def empty_output(
    q: Tensor, _k: Tensor, v: Tensor, _scaling: float, _layer: int, _sinks: Tensor | None
) -> Tensor:
    """What the operator gives for such arguments, not filled in: (B, 1, Hq, D)."""
    B, Hq, T, _ = q.shape
    return q.new_empty(B, T, Hq, v.shape[3])


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """What a model that is being exported calls; its other arguments were checked in the prompt."""
    more = kwargs["scaling"], module.layer_idx, kwargs.get("s_aux")
    return operator()(query, key, value, *more), None


class _NoCache(StateCache):
    """Hands keys and values on; the cache in `CALL` stores them."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        return key_states, value_states


class _Step(nn.Module):
    """One token a row, (B, 1), at positions (B, 1), to scores (B, V) and outputs of `states`."""

    def __init__(self, model: PreTrainedModel, states: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.model = model
        self._outputs: list[Tensor] = []
        for module in states:
            module.register_forward_hook(self._add)

    def _add(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        self._outputs.append(hidden[:, -1])

    def forward(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        more = {"past_key_values": _NoCache(1), "use_cache": True, "logits_to_keep": 1}
        scores = self.model(input_ids=ids, position_ids=positions, **more).logits[:, -1]
        outputs = scores, *self._outputs
        self._outputs.clear()  # the exporter refuses tensors that stay in a module
        return outputs


def refusal(model: PreTrainedModel) -> str | None:
    """Why a model's step cannot be compiled, as far as it can be seen before trying."""
    for name, module in model.named_modules():
        called = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(hook is not announce for hook in called):
            return f"{name or 'the model'} has a hook, which a compiled step would not call"
        if "forward" in vars(module):
            return f"the forward of {name or 'the model'} was replaced by another one"
        if any(isinstance(x, Tensor) and x.is_mkldnn for x in vars(module).values()):
            return f"{name} has weights that only its own kernels can read"
    return None


def constants(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and buffers by the names that an exported step has for them."""
    step, every = _Step(model), {"remove_duplicate": False}
    return dict(chain(step.named_parameters(**every), step.named_buffers(**every)))


def exported(model: PreTrainedModel, states: Sequence[str]) -> ExportedProgram:
    """One decode step of a model as a graph, for any number of rows.

    The model stays as it is: what is traced is a copy that shares its tensors.
    """
    from torch.export import Dim, export  # a third of a second, which most who import need not pay

    operator()
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, padding_mask)
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        module._forward_pre_hooks.clear()
    twin.set_attn_implementation(_ATTENTION)
    ids = torch.zeros(_ROWS, 1, dtype=torch.int64, device=model.device)
    rows = {0: Dim("rows", min=1)}
    with torch.no_grad():
        step = _Step(twin, [twin.get_submodule(name) for name in states])
        return export(step, (ids, ids + 1), dynamic_shapes=(rows, rows), strict=False)

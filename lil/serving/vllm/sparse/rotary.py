"""How the engine's layers turn their keys: looked up and then tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention.errors import InvalidValue
from lil.serving.blocks.ropes import RopeTable

#: Positions at which the keys of one state are compared, and the rounding that is allowed.
POSITIONS, ROUNDING = (0, 1, 2, 3, 17, 100), 0.05


class RopeTables:
    """The rotary tables of a model's layers, each once, as layers share them."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._tables: dict[tuple[int, bool], RopeTable] = {}

    def of(self, name: str, layer: Any, parent: nn.Module) -> RopeTable:
        """What turns the keys of a layer, whose parent module takes positions and states.

        A model may have a rotary embedding in a layer and not use it there. The layer's parent is
        therefore shown one state at several positions: its keys, turned back, have to be the same.
        """
        rotary: Any = getattr(parent, "rotary_emb", None)
        table = getattr(rotary, "cos_sin_cache", None)
        if table is None or table.dim() != 2 or hasattr(rotary, "mrope_section"):
            allowed = "a rotary embedding with one table of cosines and sines, for infllm"
            raise InvalidValue(name, type(rotary).__name__, allowed)
        key = table.data_ptr(), bool(rotary.is_neox_style)
        rope = self._tables.setdefault(key, RopeTable(table, key[1]))
        positions = torch.tensor(POSITIONS, device=table.device).clamp(max=len(table) - 1)
        draw = torch.Generator().manual_seed(0)
        state = torch.randn(1, self._width, generator=draw).to(table.device, self._dtype)
        described = f"keys of {type(parent).__name__}"
        try:
            keys = _keys(layer, parent, positions, state.repeat(len(positions), 1))
        except (TypeError, ValueError, RuntimeError, LookupError, AssertionError) as error:
            allowed = "a layer whose parent takes positions and states, so that its keys are seen"
            raise InvalidValue(name, described, f"{allowed}, for infllm ({error})") from error
        back = rope.to_start(keys.view(len(positions), layer.num_kv_heads, -1), positions)
        if not (back - back[:1]).norm() <= ROUNDING * back.norm():
            allowed = "keys that are turned by the layer's rotary embedding, for infllm"
            raise InvalidValue(name, described, allowed)
        return rope


class _SeenError(Exception):
    """The keys have come to the attention: nothing behind it has to run."""


def _keys(layer: Any, parent: nn.Module, positions: Tensor, states: Tensor) -> Tensor:
    """The keys of a layer at these positions."""
    seen: list[Tensor] = []

    def forward(_query: Tensor, key: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        seen.append(key)
        raise _SeenError

    layer.forward = forward
    try:
        with torch.inference_mode():
            parent(positions, states)
    except _SeenError:
        return seen[0]
    finally:
        del layer.forward
    raise LookupError("nothing came to its attention")

"""How the engine's layers turn their keys, found and then tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention.errors import InvalidValue
from lil.serving.blocks import RopeTable

#: Keys of one text at these positions, turned back, are the same but for rounding.
POSITIONS = (0, 1, 2, 3, 17, 100)
#: By this much of their length; keys that are not turned differ by far more.
ROUNDING = 0.05


class RopeTables:
    """The tables of a model's layers, each kept once, as layers share them.

    Args:
        width: numbers of a state that a layer reads.
        dtype: of states.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._found: dict[tuple[int, bool], RopeTable] = {}

    def of(self, name: str, layer: Any, parent: nn.Module) -> RopeTable:
        """What turns the keys of a layer, which is tried on some of its own.

        A model may have a rotary embedding in a layer and not use it there, so the layer's parent
        is shown one vector at several places, and its keys are looked at where they come to the
        attention.

        Args:
            name: the engine's, of the layer.
            layer: that attends.
            parent: the module that it is part of, which is called with positions and states.

        Raises:
            InvalidValue: it has none, one whose angles do not follow from the position alone, or
                keys that are not turned so.
        """
        rotary: Any = getattr(parent, "rotary_emb", None)
        table = getattr(rotary, "cos_sin_cache", None)
        if table is None or table.dim() != 2 or hasattr(rotary, "mrope_section"):
            allowed = "a rotary embedding with one table of cosines and sines, for infllm"
            raise InvalidValue(name, type(rotary).__name__, allowed)
        key = table.data_ptr(), bool(rotary.is_neox_style)
        if key not in self._found:
            self._found[key] = RopeTable(table, key[1])
        rope = self._found[key]
        self._try(name, layer, parent, rope)
        return rope

    def _try(self, name: str, layer: Any, parent: nn.Module, rope: RopeTable) -> None:
        positions = torch.tensor(POSITIONS, device=rope.cos.device).clamp(max=len(rope.cos) - 1)
        draw = torch.Generator().manual_seed(0)
        state = torch.randn(1, self._width, generator=draw).to(positions.device, self._dtype)
        told = f"keys of {type(parent).__name__}"
        try:
            keys = _keys(layer, parent, positions, state.repeat(len(positions), 1))
        except (TypeError, ValueError, RuntimeError, LookupError, AssertionError) as error:
            allowed = "a layer whose parent takes positions and states, so that its keys are seen"
            raise InvalidValue(name, told, f"{allowed}, for infllm ({error})") from error
        keys = keys.view(len(positions), layer.num_kv_heads, -1)
        back = rope.to_start(keys, positions)
        apart = (back - back[:1]).norm() / back.norm()
        if not apart <= ROUNDING:
            allowed = "keys that are turned by the layer's rotary embedding, for infllm"
            raise InvalidValue(name, told, allowed)


class _SeenError(Exception):
    """The keys have come to the attention: nothing behind it has to run."""


def _keys(layer: Any, parent: nn.Module, positions: Tensor, states: Tensor) -> Tensor:
    """What a layer attends to at these positions.

    Raises:
        LookupError: nothing has come to its attention.
    """
    found: list[Tensor] = []

    def forward(_query: Tensor, key: Tensor, *_rest: Any, **_more: Any) -> Tensor:
        found.append(key)
        raise _SeenError

    layer.forward = forward
    try:
        with torch.inference_mode():
            parent(positions, states)
    except _SeenError:
        return found[0]
    finally:
        del layer.forward
    raise LookupError("nothing came to its attention")

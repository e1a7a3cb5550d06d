"""Everything in float64, whatever a model's code asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """Inside the block float32 means float64.

    transformers computes norms, rotary tables, routers and recurrences in float32 whatever a
    model's dtype is. At 1e-9 that noise would hide, or pass for, a difference in the attention.
    """

    def __enter__(self) -> Any:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self.before)
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        wide = {torch.float32: torch.float64}
        named = {key: _widened(x, wide) for key, x in (kwargs or {}).items()}
        return func(*(_widened(x, wide) for x in args), **named)


def _widened(x: Any, wide: dict[torch.dtype, torch.dtype]) -> Any:
    return wide.get(x, x) if isinstance(x, torch.dtype) else x

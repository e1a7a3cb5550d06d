"""Triton's interpreter, as tests of kernels need it: quicker, and in any order of programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest import mock

Order = Callable[[list[tuple[int, ...]]], object]


@contextmanager
def interpreting(order: Order | None = None) -> Iterator[None]:
    """Inside, triton's language is patched once a launch, where it is for each function call.

    Args:
        order: puts the programs of a grid in another order, in place.
    """
    from triton.language.standard import cdiv
    from triton.runtime import interpreter

    patch, set_index = interpreter._patch_lang, interpreter.interpreter_builder.set_grid_idx
    grid: list[tuple[int, ...]] = []

    class Scopes:
        def __init__(self, function: Any) -> None:
            self.scopes = [patch(function), patch(cdiv.fn)]

        def restore(self) -> None:
            for scope in reversed(self.scopes):
                scope.restore()

    def nested(self: Any, *args: Any, **options: Any) -> Any:
        return self.rewrite()(*args, **options)

    def indexed(*at: int) -> None:
        if order is None:
            set_index(*at)
            return
        sizes = interpreter.interpreter_builder.grid_dim
        if not any(at):
            grid[:] = product(*map(range, sizes))
            order(grid)
        set_index(*grid[(at[0] * sizes[1] + at[1]) * sizes[2] + at[2]])

    with ExitStack() as stack:
        for target, name, new in (
            (interpreter, "_patch_lang", Scopes),
            (interpreter.InterpretedFunction, "__call__", nested),
            (interpreter.interpreter_builder, "set_grid_idx", indexed),
        ):
            stack.enter_context(mock.patch.object(target, name, new))
        yield


ORDERS: dict[str, Order] = {
    "reversed": list.reverse,
    "shuffled": random.Random(0).shuffle,
}

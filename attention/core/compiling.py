"""What runs as it is where a model is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P, R = ParamSpec("P"), TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that a compiled model calls and that is not compiled with it.

    As `torch.compiler.disable`, which takes its time in every call, compiled or not: here only a
    call that is being compiled goes through it.
    """
    aside = cast("Callable[P, R]", torch.compiler.disable(function))

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return aside(*args, **kwargs)
        return function(*args, **kwargs)

    return called

"""What runs as it is where a model is compiled, and what changes state in any mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Keep a function out of compiled models; `torch.compiler.disable` would slow every call."""
    aside = torch.compiler.disable(function)  # type: ignore[no-untyped-call]

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (aside if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return cast("F", called)


def changing_state(function: F) -> F:
    """Without gradients, and outside the caller's inference mode, which state must outlive."""
    return torch.inference_mode(False)(torch.no_grad()(function))

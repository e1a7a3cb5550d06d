"""Whether a run's decode steps are compiled: asked for, kept from earlier, or worth their time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from attention import AttentionCache
from attention.core import devices
from attention.patching.compiled import CompiledStep, NotCompiled, compiled
from lil.decoding.options import DecodeOptions, Request

# Seconds on one core of a server: what compiling takes for any model and for each layer of it, and
# what a compiled step saves for each. `scripts/bench/compiled_step.py` measures them.
_COMPILING, _COMPILING_A_LAYER = 10.0, 1.0
_SAVED_A_LAYER = 4e-4
# Compiling has to pay this often: output may end far before its cap.
_TIMES = 4


class CompileWarning(UserWarning):
    """Steps were to be compiled and are not, with the reason."""


def pays(layers: int, steps: float, margin: float = _TIMES) -> bool:
    """Whether so many steps save `margin` times what compiling takes."""
    cost = _COMPILING + _COMPILING_A_LAYER * layers
    return _SAVED_A_LAYER * layers * steps > margin * cost


def step_of(
    model: Any,
    cache: AttentionCache,
    options: DecodeOptions,
    requests: Sequence[Request],
    *,
    reads_states: bool,
) -> CompiledStep | None:
    """The compiled step that a run decodes with; None where the model runs as it is.

    Args:
        model: of the run.
        cache: of the open block on it.
        options: of the run.
        requests: all of them.
        reads_states: whether detectors read hidden states, for which the model is hooked.
    """
    if options.compile == "off":
        return None
    wanted = options.compile == "on"
    if reads_states:
        reason = "detectors read hidden states, through hooks that a compiled step would not call"
        if wanted:
            _warn(reason)
        return None
    make = wanted
    if options.compile == "auto" and devices.answers_at_once(model.device):
        caps = sum(request.max_new_tokens or 0 for request in requests)
        make = pays(model.config.num_hidden_layers, caps / options.batch_size)
    try:
        return compiled(model, cache, wait=wanted, make=make)
    except NotCompiled as error:
        if make:
            _warn(str(error))
        return None


def _warn(reason: str) -> None:
    warnings.warn(f"steps are not compiled: {reason}", CompileWarning, stacklevel=3)

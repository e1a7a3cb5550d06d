"""Whether a run's decode steps are compiled: requested, kept from earlier, or worth their time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from attention import AttentionCache
from attention.errors import CompileWarning
from attention.patching.captured import GRAPHS
from attention.patching.compiled import compiled
from attention.patching.decode_step import DecodeStep, NotCompiled
from lil.decoding.options import DecodeOptions, Request

#: Seconds: what compiling a step takes for any model and for each layer of it, and what it saves in
#: each layer: of a captured step on an H100, and on one core of a server.
COSTS = {"cuda": (15.0, 0.0, 4.5e-5), "cpu": (10.0, 1.0, 4e-4)}
# Making a step has to pay this often: output may end far before its cap.
_TIMES = 4


def pays(layers: int, steps: float, margin: float = _TIMES, device: str = "cpu") -> bool:
    """Whether so many steps save `margin` times what compiling one takes on such a device."""
    if device not in COSTS:
        return False
    any_model, a_layer, saved = COSTS[device]
    return saved * layers * steps > margin * (any_model + a_layer * layers)


def work(mode: str, model: Any, steps: float, margin: float = _TIMES) -> dict[str, bool]:
    """What `compiled` is to do for so many steps of a run in such a mode.

    A GPU's step is always captured: a host that launches kernels one by one is slower than a GPU.
    """
    device, layers = model.device.type, model.config.num_hidden_layers
    fuse = mode == "on" or (mode == "auto" and pays(layers, steps, margin, device))
    return {"make": fuse or (mode == "auto" and device in GRAPHS), "fuse": fuse}


def step_of(
    model: Any,
    cache: AttentionCache,
    options: DecodeOptions,
    requests: Sequence[Request],
    rows: int,
    *,
    states: Sequence[str] = (),
) -> DecodeStep | None:
    """The compiled step of a run, None where the model runs as it is; `states` are modules read."""
    if options.compile == "off" or (options.speculate and model.device.type in GRAPHS):
        return None  # each check of drafts moves all keys, and a graph reads them where they were
    caps = sum(request.max_new_tokens or 0 for request in requests)
    due = work(options.compile, model, caps / rows)
    try:
        return compiled(model, cache, states=states, wait=options.compile == "on", **due)
    except NotCompiled as error:
        if due["make"]:
            warn_not_compiled(str(error))
        return None


def warn_not_compiled(reason: str) -> None:
    """Say that the model runs as it is, and why."""
    warnings.warn(f"steps are not compiled: {reason}", CompileWarning, stacklevel=3)

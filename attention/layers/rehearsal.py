"""Whether hooks can be captured: they run on a copy of a layer's state, and are watched."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from attention.core import step as steps
from attention.core.step import DeviceStep, HostNumber

_REFUSED = {
    torch.Tag.data_dependent_output: "which brings a number to the host",
    torch.Tag.dynamic_output_shape: "whose shape depends on numbers",
    torch.Tag.nondeterministic_seeded: "which draws random numbers",
}
# Ways between host and device that are no operation on a CPU.
_CALLS = {"__array__", "as_tensor", "asarray", "cpu", "numpy", "tensor", "tolist"}


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with their numbers and shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tag in _REFUSED.keys() & set(func.tags):
            raise HostNumber(f"{func.overloadpacket.__name__}, {_REFUSED[tag]}")
        if func.overloadpacket.__name__.startswith("index_put") and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        ):
            raise HostNumber("x[mask] = ..., for which the host waits")
        self.record.append(f"{func} {tree_map(_shape, (args, kwargs))}")
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _CALLS:
            raise HostNumber(f"{func.__name__}(), which goes between host and device")
        return func(*args, **(kwargs or {}))


def _shape(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, Tensor) else x


def obstacle(layer: Any) -> str | None:
    """Why the hooks of a `Layer` that has read a prompt cannot be captured; None if they can."""
    device, tokens = layer.geometry.device, max(64, *(x.capacity for x in layer.state.values()))
    twin = layer.copied(torch.zeros(2, dtype=torch.int64, device=device))
    for slots in twin.state.values():
        slots.reserve(2, tokens)

    def record(past: int) -> list[str]:
        step = DeviceStep(torch.full((2,), past, device=device))
        operations = _Operations()
        with operations, _Calls():
            twin.rehearse(step)
        return operations.record

    rebound: list[str] = []
    kept = "has hooks that keep numbers outside `remember` and `slots` for the next step"
    try:
        record(tokens // 2)
        before = dict(vars(twin))
        tensors = {name: x.clone() for name, x in before.items() if isinstance(x, Tensor)}
        first = record(tokens // 2)
        if any(not torch.equal(before[name], x) for name, x in tensors.items()):
            return kept
        # What a step binds anew must not be read by the next one, where it would stay as it is.
        rebound += [name for name, x in vars(twin).items() if before.get(name) is not x]
        for name in rebound:
            delattr(twin, name)
        return None if record(tokens // 2 + 1) == first else kept
    except Exception as error:  # the method runs as it is, and raises it there if it is a fault
        if isinstance(error, AttributeError) and error.name in rebound:
            return kept
        what = str(error) if type(error) is HostNumber else f"{type(error).__name__}: {error}"
        frames = reversed(traceback.extract_tb(error.__traceback__))
        files = (steps.__file__, __file__, "/torch/")
        at = next(x for x in frames if not any(file in x.filename for file in files))
        place = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        return f"has hooks that ask for {what} ({place})"

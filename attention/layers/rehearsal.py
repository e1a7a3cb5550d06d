"""Whether the hooks of a method can be captured: they run on a copy, and are watched."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from attention.core import step as steps
from attention.core.step import DeviceStep, HostNumber

if TYPE_CHECKING:
    from attention.layers.layer import Layer

_REFUSED = {
    torch.Tag.data_dependent_output: "which brings a number to the host",
    torch.Tag.dynamic_output_shape: "whose shape depends on numbers",
    torch.Tag.nondeterministic_seeded: "which draws random numbers",
}
# Ways between host and device that no operation shows, on a CPU.
_CALLS = {"__array__", "as_tensor", "asarray", "cpu", "numpy", "tensor", "tolist"}


class _Operations(TorchDispatchMode):
    """Records operations with their numbers and shapes, and refuses what cannot be captured."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.record = device, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        for tag in _REFUSED.keys() & set(func.tags):
            raise HostNumber(f"{name}, {_REFUSED[tag]}")
        if name.startswith("index_put") and any(
            x is not None and not x.dtype.is_floating_point and x.dtype == torch.bool
            for x in args[1]
        ):
            raise HostNumber(f"{name} with a boolean tensor, for which the host waits")
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.device != self.device and name != "lift_fresh":
                raise HostNumber(f"{name} on {x.device}")
        self.record.append(f"{func} {tree_map(_shape, (args, kwargs))}")
        return out


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CALLS:
            raise HostNumber(f"{name}(), which goes between host and device")
        return func(*args, **(kwargs or {}))


def _shape(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, Tensor) else x


def obstacle(layer: Layer) -> str | None:
    """Why the hooks of a layer that has read a prompt cannot be captured; None where they can."""
    device, tokens = layer.geometry.device, max(64, *(x.capacity for x in layer.state.values()))
    twin = layer.copied(torch.zeros(2, dtype=torch.int64, device=device))
    for slots in twin.state.values():
        slots.reserve(2, tokens)

    def record(past: int) -> list[str]:
        lengths = torch.full((2,), past, device=device)
        with _Operations(device) as operations, _Calls():
            twin.rehearse(DeviceStep(lengths))
        return operations.record

    try:
        record(tokens // 2)
        before = dict(vars(twin))
        first = record(tokens // 2)
        # What each step binds anew must not be read by the next: a graph would read it for ever.
        for name in [name for name, x in vars(twin).items() if before.get(name) is not x]:
            delattr(twin, name)
        second = record(tokens // 2 + 1)
    except Exception as error:  # the method runs as it is, and raises it there if it does
        what = str(error) if type(error) is HostNumber else f"{type(error).__name__}: {error}"
        return f"its hooks ask for {what} ({_place(error)})"
    if first == second:
        return None
    return "its hooks keep numbers from one step to the next outside `remember` and `slots`"


def _place(error: Exception) -> str:
    """The line of a hook that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    hidden = (steps.__file__, __file__)
    frame = next(
        x for x in reversed(frames) if x.filename not in hidden and "/torch/" not in x.filename
    )
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"

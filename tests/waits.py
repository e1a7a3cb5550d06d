"""Decode steps in which nothing may wait for the device, enforced on a CPU.

`watched` lets `lil.decode` take a CPU for an accelerator, so that the host looks at steps one step
late. While a decode step is launched, looked at and taken (`DecodeLoop._advance`), two modes raise
`WaitingError`: one sees every operation that torch dispatches, the other every call before it.
Every torch tensor counts as on the device. Exempt are `devices.put` and `devices.fetch`, a look at
a step when a newer one has been launched, and detectors that read the states of that look. Prompts
are read outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attention.core import devices
from lil.decoding.batch import Flight
from lil.decoding.lane import Observers
from lil.decoding.loop import DecodeLoop

#: Operations that bring a value to the host, or whose shapes depend on values.
OPERATIONS = {
    *("_local_scalar_dense", "bincount", "equal", "isin", "masked_select", "nonzero"),
    *("nonzero_static", "_unique", "_unique2", "unique_consecutive", "unique_dim"),
}
#: Operations that do with a boolean tensor.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
#: Methods and functions that do, some of them without an operation on a CPU.
CALLS = {
    *("__array__", "__bool__", "__contains__", "__float__", "__index__", "__int__"),
    *("allclose", "cpu", "equal", "item", "numpy", "tolist"),
}
#: Ways to a device that wait for it.
MADE_OF_NUMBERS = {"as_tensor", "asarray", "tensor"}


class WaitingError(AssertionError):
    """The host would have waited for the device."""


class _Operations(TorchDispatchMode):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in OPERATIONS:
            self.guard.refuse(name)
        masks = args[1] if name in INDEXING else ()
        if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in masks):
            self.guard.refuse(f"{name} with a boolean tensor")
        if name == "repeat_interleave" and "Tensor" in func._overloadname:
            # With one number for all it is an expansion.
            self.guard.refuse("repeat_interleave with a tensor")
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        if name in CALLS or name in MADE_OF_NUMBERS:
            self.guard.refuse(name)
        if name == "to" and "cpu" in (*args[1:], options.get("device")):
            self.guard.refuse("to('cpu')")
        return func(*args, **options)


class Guard:
    """Raises on everything that waits, but for `looking_away`; counts launched decode steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.newest: Flight | None = None
        self.states: Any = None  # of the step looked at last, None while prompts are read
        self._away = 0

    def refuse(self, what: str) -> None:
        if not self._away:
            raise WaitingError(f"in a decode step: {what}")

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        self._away += 1
        try:
            yield
        finally:
            self._away -= 1

    @contextmanager
    def on(self) -> Iterator[None]:
        """Nothing in here may wait."""
        with _Calls(self), _Operations(self):
            yield

    def exempt(self, function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            with self.looking_away():
                return function(*args, **kwargs)

        return called


@contextmanager
def watched() -> Iterator[Guard]:
    """The CPU counts as an accelerator, and no decode step in here may wait."""
    guard = Guard()
    advance, launch, land = DecodeLoop._advance, DecodeLoop._launch, Flight.land
    see = Observers.see

    def advanced(self: Any, batch: Any, rows: Any, newcomers: bool = False) -> None:
        if newcomers:
            guard.states = None
            advance(self, batch, rows, newcomers)
            return
        with guard.on():
            advance(self, batch, rows)

    def launched(self: Any, batch: Any, rows: Any, newcomers: bool) -> Flight | None:
        flight = launch(self, batch, rows, newcomers)
        if not newcomers:
            guard.newest = flight
            guard.steps += flight is not None
        return flight

    def landed(self: Flight) -> Any:
        if self is guard.newest:
            guard.refuse("a look at the newest step")
        with guard.looking_away():
            result = land(self)
        guard.states = result.states
        return result

    def seen(self: Observers, states: Any, place: int) -> None:
        if guard.states is not None and states is not guard.states:
            guard.refuse("hidden states of another step than the one looked at")
        with guard.looking_away():
            see(self, states, place)

    with (
        mock.patch.object(devices, "is_synchronous", return_value=False),
        mock.patch.object(devices, "put", guard.exempt(devices.put)),
        mock.patch.object(devices, "fetch", guard.exempt(devices.fetch)),
        mock.patch.object(Observers, "see", seen),
        mock.patch.object(DecodeLoop, "_advance", advanced),
        mock.patch.object(DecodeLoop, "_launch", launched),
        mock.patch.object(Flight, "land", landed),
    ):
        yield guard

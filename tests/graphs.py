"""What CUDA graphs do, on a CPU: a stand-in for `attention.patching.captured.CudaGraphs`.

A captured piece is recorded, operation by operation, below everything that decides anything: each
with the tensors and the Python numbers it was called with. A replay calls the same operations with
the same numbers on the same memory and writes what they give to where it was when recorded. So it
is with a graph, and so:

- what was captured has run for nobody: until the first replay its results are not numbers;
- what a piece computes and does not give is not there behind it (`NaN`, or -1): a graph's pool
  gives that memory to the next one;
- what a piece reads of others, and what it gives, somebody has to hold, at the same address.

Kernels that are launched by `attention.engines.gpu.launch` are recorded as such.

While a piece is recorded these raise `CaptureError`: everything for which `tests.waits` knows that
the host would wait, operations on another device than the piece's own or pinned memory, and random
numbers. Captures and replays on another stream than that of the step they are part of raise, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from attention.engines import gpu
from attention.patching import captured, program
from tests.waits import Guard, WaitingError


class CaptureError(RuntimeError):
    """A GPU would refuse to capture this, or replay something else."""


@dataclass
class Operation:
    """A recorded operation; `results` are None for views and for its own arguments."""

    function: Any
    arguments: Any
    options: Any
    results: list[Tensor | None]


def storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def memory(x: Tensor) -> Tensor:
    """The same memory, held by another tensor."""
    return torch.ops.aten.alias.default(x)


class _Recorder(TorchDispatchMode):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.piece = piece

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options, piece = kwargs or {}, self.piece
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise CaptureError(f"in a piece: random numbers of {func}")
        output = func(*args, **options)
        piece.record(func, args, options, output)
        return output


@contextmanager
def _launches(piece: Piece | None) -> Iterator[None]:
    """Inside, kernels run unseen by any mode, and are recorded in a piece."""
    launch, call = gpu.launch, program.call

    def called(compiled: Any, *args: Any) -> Any:
        """A compiled piece, whose kernels no mode sees: one operation."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            output = call(compiled, *args)
            if piece is not None:
                piece.record(partial(call, compiled), args, {}, output)
        return output

    def launched(*args: Any, **constants: Any) -> None:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            launch(*args, **constants)
            if piece is not None:
                for x in filter(torch.is_tensor, args):
                    piece.read(x)
                own = [memory(x) if isinstance(x, Tensor) else x for x in args]
                piece.operations.append(Operation(_relaunched, own, constants, []))

    with (
        mock.patch.object(gpu, "launch", launched),
        mock.patch.object(program, "call", called),
    ):
        yield


def _relaunched(*args: Any, **constants: Any) -> None:
    gpu.launch(*args, **constants)


@dataclass
class Piece:
    """What was captured at once: tensors that it reads and makes, by their memory."""

    owner: StandIn
    device: torch.device
    operations: list[Operation] = field(default_factory=list)
    outside: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)
    made: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[weakref.ref[Tensor]] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    spent: list[Tensor] = field(default_factory=list)
    replays: int = 0

    def read(self, x: Tensor) -> None:
        if storage(x) not in self.made and storage(x) not in self.outside:
            if x.device != self.device or x.is_pinned():
                raise CaptureError(f"in a piece: a tensor on {x.device}, or in pinned memory")
            self.outside[storage(x)] = weakref.ref(x)

    def record(self, function: Any, args: Any, options: Any, output: Any) -> None:
        """An operation that has run."""
        for x in tree_leaves((args, options)):
            if isinstance(x, Tensor):
                self.read(x)
        results = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        if any(x.device != self.device or x.is_pinned() for x in results):
            raise CaptureError(f"in a piece: {function} on another device, or pinned memory")
        known = self.made.keys() | self.outside.keys()
        copies = [None if storage(x) in known else memory(x) for x in results]
        self.made |= {storage(x): x for x in copies if x is not None}
        recorded = (tree_map_only(Tensor, memory, part) for part in (args, options))
        self.operations.append(Operation(function, *recorded, copies))

    def close(self, outputs: list[Any]) -> None:
        """All is recorded: nothing of it has been computed for anybody."""
        tensors = [x for x in outputs if isinstance(x, Tensor)]
        self.outputs = [weakref.ref(x) for x in tensors]
        self.addresses = self._addresses()
        named = {storage(x) for x in tensors}
        self.spent = [x for at, x in self.made.items() if at not in named]
        _spoil(list(self.made.values()))

    def replay(self) -> None:
        self.owner.launch("replay")
        if self._addresses() != self.addresses:
            raise CaptureError("a piece reads or gives memory that has been moved")
        for operation in self.operations:
            output = operation.function(*operation.arguments, **operation.options)
            again = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
            for new, result in zip(again, operation.results, strict=True):
                if result is not None:
                    result.copy_(new)
        _spoil(self.spent)
        self.replays += 1

    def _addresses(self) -> list[int]:
        tensors = [reference() for reference in (*self.outside.values(), *self.outputs)]
        if any(x is None for x in tensors):
            raise CaptureError("nobody holds what a piece reads or gives: its memory is another's")
        return [x.data_ptr() for x in tensors if x is not None]


def _spoil(tensors: list[Tensor]) -> None:
    for x in tensors:
        if x.dtype != torch.bool:
            x.fill_(torch.nan if x.is_floating_point() else -1)


class StandIn:
    """Graphs of one device, in the place of `CudaGraphs`; a test may set `current`, the stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.current: object = "a stream"
        self.pieces: list[Piece] = []
        self.launches: list[tuple[str, object]] = []
        self.follows: list[tuple[object, object]] = []
        self._started: object = None

    def stream(self) -> Any:
        self._started = self.current
        return self.current

    def follow(self, now: Any, before: Any) -> None:
        self.follows.append((now, before))

    def launch(self, what: str) -> None:
        if self.current is not self._started:
            raise CaptureError(f"{what} on another stream than the step began on")
        self.launches.append((what, self.current))

    def capture(self, work: Callable[[], list[Any]]) -> tuple[Piece, list[Any]]:
        self.launch("capture")
        work()  # warms up
        piece, guard = Piece(self, self.device), Guard()
        try:
            with _launches(piece), guard.on(), _Recorder(piece):
                outputs = work()
        except WaitingError as error:
            raise CaptureError(str(error)) from error
        piece.close(outputs)
        self.pieces.append(piece)
        return piece, outputs


@contextmanager
def on_a_cpu() -> Iterator[None]:
    """Inside, a CPU's decode steps are captured by the stand-in."""
    with mock.patch.dict(captured.GRAPHS, {"cpu": StandIn}), _launches(None):
        yield

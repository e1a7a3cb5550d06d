"""A decode step as CUDA graphs: what is between two attentions is captured once and replayed.

A graph replays the same kernels on the same memory. Attention cannot be in one, since the number of
slots changes with every step. So the exported step is cut at its attentions; each piece between two
of them is captured for a number of rows (`padded`), and attention is launched in between, on the
same stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from attention.patching.attention_op import CALL, Call, constants, empty_output, exported
from attention.patching.cache import AttentionCache
from attention.patching.decode_step import DecodeStep, NotCompiled, probe, quiet
from attention.patching.graph_split import CutStep, computed, cut, value_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: What the exporter raises of a model that it cannot trace: its own errors, and those of the model.
EXPORT_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)

# Before a capture its work runs so often as it is: libraries set themselves up in a first run.
_WARM_UPS = 2


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Launch it again on the current stream: the same kernels on the same memory."""


class Graphs(Protocol):
    """Where work is captured; all graphs of one share their memory, so one runs at a time."""

    def stream(self) -> Any:
        """The stream on which this thread launches now; the same one is equal."""

    def follow(self, now: Any, before: Any) -> None:
        """Let what is launched on the stream `now` wait on the device for that on `before`."""

    def capture(self, work: Callable[[], list[Any]]) -> tuple[Graph, list[Any]]:
        """Capture what `work` launches.

        Returns:
            The graph, and what `work` returned: its tensors hold numbers after a replay.
        """


class CudaGraphs:
    """CUDA graphs of one device, in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One for all: what is freed on a stream is given again on that stream alone.
        self._side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def follow(self, now: Any, before: Any) -> None:
        now.wait_stream(before)

    def capture(self, work: Callable[[], list[Any]]) -> tuple[Graph, list[Any]]:
        now, graph = self.stream(), torch.cuda.CUDAGraph()
        # A capture that fails may leave its own stream behind as the current one.
        with torch.cuda.device(self._device), torch.cuda.stream(now):
            self._side.wait_stream(now)
            with torch.cuda.stream(self._side):
                for _ in range(_WARM_UPS):
                    work()
            try:
                # Another thread may pin memory or load another model meanwhile.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
                ):
                    outputs = work()
            except RuntimeError as error:
                # Ending such a capture fails too, and does not say why.
                first = error.__context__
                raise error if first is None else first from None
            now.wait_stream(self._side)
        return graph, outputs


#: What captures on which kind of device.
GRAPHS: dict[str, Callable[[torch.device], Graphs]] = {"cuda": CudaGraphs}


def padded(rows: int) -> int:
    """The number of rows for which a step of so many is captured: 1, 2, 4, 8, 16, 24, 32, 48 ..."""
    if rows <= 8:
        return 1 << (rows - 1).bit_length()
    unit = 8 if rows <= 32 else 16 if rows <= 128 else 32
    return -(-rows // unit) * unit


class _Weight(NamedTuple):
    """A tensor of the model that graphs read at its address.

    Attributes:
        holder: a module's parameters or buffers by name.
        tensor: itself, no alias: where a model is moved its memory is let go.
        address: of its memory when it was bound.
    """

    holder: Mapping[str, Any]
    name: str
    tensor: Tensor
    address: int

    @property
    def replaced(self) -> bool:
        now = self.holder.get(self.name)
        return now is None or now.data_ptr() != self.address


class GraphedStep(DecodeStep):
    """A step whose pieces between attentions are captured as graphs, when a number of rows comes.

    Weights that are changed in place are read as they are. Where a weight has other memory than
    when it was captured, all is captured anew. Scores are the caller's own; of two threads the
    second waits until the first has launched its step.
    """

    how: ClassVar[str] = "captured as graphs"

    def __init__(
        self,
        program: ExportedProgram,
        model: PreTrainedModel,
        graphs: Graphs,
        states: tuple[str, ...] = (),
    ) -> None:
        self.seconds, self.states = 0.0, states
        self.graphs = graphs
        self._cut = cut(program, constants(model), model.device)
        self._holders = _holders(model)
        self._weights: dict[fx.Node, _Weight] = {}
        self._captured: dict[int, _Rows] = {}
        self._stream: Any = None
        self._lock = threading.Lock()
        self._bind()

    @property
    def stale(self) -> bool:
        """Whether a weight has other memory than when it was bound."""
        return any(weight.replaced for weight in self._weights.values())

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, ids: Tensor, positions: Tensor) -> Sequence[Tensor]:
        call, B = CALL.get(), len(ids)
        with self._lock:
            self._follow()
            if self.stale:
                self._captured.clear()
                self._bind()
            rows = self._captured.get(padded(B))
            if rows is None:
                rows = self._captured[padded(B)] = self._capture(padded(B))
            return rows.run(call, B, ids, positions)

    def _follow(self) -> None:
        """Begin behind the last step, whose memory this one takes."""
        now = self.graphs.stream()
        if self._stream is not None and now != self._stream:
            self.graphs.follow(now, self._stream)
        self._stream = now

    def _bind(self) -> None:
        """Take the model's tensors as they are now."""
        weights: dict[fx.Node, _Weight] = {}
        for node, name in self._cut.weights.items():
            holder, key = self._holders[name]
            now = holder.get(key)
            if now is None or not _alike(node.meta["val"], now):
                raise NotCompiled(f"{name} was replaced by another kind of tensor")
            weights[node] = _Weight(holder, key, now, now.data_ptr())
        self._weights = weights

    def _capture(self, rows: int) -> _Rows:
        values: dict[fx.Node, Any] = dict(self._cut.extra)
        values |= {node: weight.tensor for node, weight in self._weights.items()}
        try:
            return _Rows(self._cut, values, self.graphs, rows)
        except RuntimeError as error:  # torch's, where work cannot be captured
            reason = NotCompiled.because(error)
            raise NotCompiled(f"a step of {rows} rows cannot be captured: {reason}") from error


class _Rows:
    """A step captured for a number of rows."""

    def __init__(
        self, step: CutStep, values: dict[fx.Node, Any], graphs: Graphs, rows: int
    ) -> None:
        device = next(iter(values.values())).device
        self.inputs = [torch.zeros(rows, 1, dtype=torch.int64, device=device) for _ in range(2)]
        values |= dict(zip(step.inputs, self.inputs, strict=True))
        self._parts: list[Graph | _Attention] = []
        for part in step.parts:
            if isinstance(part, fx.Node):
                attention = _Attention(part, values)
                values[part] = attention.out
                self._parts.append(attention)
                continue
            graph, outputs = graphs.capture(partial(computed, part, values))
            # Numbers for what is captured next, which runs as it is first.
            graph.replay()
            values |= dict(zip(part.gives, outputs, strict=True))
            self._parts.append(graph)
        self.outputs: list[Tensor] = [values[node] for node in step.outputs]
        # Everything that a piece reads stays where it is as long as this is there.
        self._held = values

    def run(self, call: Call, B: int, ids: Tensor, positions: Tensor) -> Sequence[Tensor]:
        """Scores and states of B rows, copies of their own."""
        for buffer, new in zip(self.inputs, (ids, positions), strict=True):
            buffer[:B].copy_(new)
        for part in self._parts:
            if isinstance(part, _Attention):
                part.run(B)
                if call.error is not None:
                    break
            else:
                part.replay()
        return [output[:B].clone() for output in self.outputs]


class _Attention:
    """An attention between two pieces, whose arguments and result lie where these have them."""

    def __init__(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        arguments = [value_of(argument, values) for argument in node.args]
        self._qkv: list[Tensor] = arguments[:3]
        self._more = arguments[3:]
        self._attend: Any = node.target
        self.out = empty_output(*arguments).zero_()
        self._views: dict[int, tuple[list[Tensor], Tensor]] = {}

    def run(self, B: int) -> None:
        """Attend in the first B rows."""
        if B not in self._views:
            self._views[B] = [x[:B] for x in self._qkv], self.out[:B]
        qkv, out = self._views[B]
        out.copy_(self._attend(*qkv, *self._more))


def _holders(model: PreTrainedModel) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Where each of `constants(model)` is looked up again, without a reference to the model."""
    holders: dict[str, tuple[Mapping[str, Any], str]] = {}
    for at, module in model.named_modules(prefix="model", remove_duplicate=False):
        for holder in (module._parameters, module._buffers):
            holders |= {f"{at}.{name}": (holder, name) for name in holder}
    return holders


def _alike(left: Tensor, right: Tensor) -> bool:
    return (
        left.shape == right.shape
        and left.stride() == right.stride()
        and left.dtype == right.dtype
        and left.device == right.device
    )


# A model is looked up here and not by an attribute of its own, which a copy of it would have too.
_KEPT: WeakKeyDictionary[PreTrainedModel, dict[str, GraphedStep]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def graphed(
    model: PreTrainedModel,
    cache: AttentionCache,
    made: Callable[[torch.device], Graphs],
    key: str,
    *,
    states: tuple[str, ...] = (),
    make: bool = True,
    kind: type[GraphedStep] = GraphedStep,
) -> GraphedStep | None:
    """A model's step as graphs; made where none is kept, and kept as long as the model lives.

    Returns:
        None where none is kept and none is to be made.
    """
    with _LOCK:
        steps = _KEPT.setdefault(model, {})
        step = steps.get(key)
        if step is not None:
            step.seconds = 0.0  # who asks now has waited for nothing
            return step
        if not make:
            return None
        # What was captured of weights that are gone holds their memory.
        for old in [name for name, old_step in steps.items() if old_step.stale]:
            del steps[old]
        started = time.perf_counter()
        try:
            with quiet():
                program = exported(model, states)
        except EXPORT_ERRORS as error:
            raise NotCompiled.because(error) from error
        try:
            step = kind(program, model, made(model.device), states)
            probe(step, model, cache)
        except RuntimeError as error:  # of the device
            raise NotCompiled.because(error) from error
        step.seconds = time.perf_counter() - started
        steps[key] = step
        return step

"""A decode step as one CUDA graph: lengths, slots and choices are tensors on the device.

It is captured for a number of rows (`padded`) on the memory of one cache, and replayed for as long
as that memory lies where it is: rows grow, come and go, and nothing is captured anew.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attention.core import devices
from attention.core.compiling import changing_state
from attention.core.step import Cut
from attention.engines.gpu import DeviceCounts, power_of_two
from attention.errors import CompileWarning, InvalidValue
from attention.layers.layer import Layer, fixed
from attention.patching import decode_step
from attention.patching.cache import AttentionCache
from attention.patching.decode_step import DecodeStep, Names, NotCompiled, Then
from attention.patching.program import Program

# Before a capture its work runs so often as it is: libraries set themselves up in a first run.
_WARM_UPS = 2


class CudaGraphs:
    """Where work is captured: graphs of one device share their memory, so one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One for all: what is freed on a stream is given again on that stream alone.
        self._side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def stream(self) -> Any:
        """The stream on which this thread launches now; the same one is equal."""
        return torch.cuda.current_stream(self._device)

    def follow(self, now: Any, before: Any) -> None:
        """Let what is launched on the stream `now` wait on the device for that on `before`."""
        now.wait_stream(before)

    def capture(self, work: Callable[[], list[Any]]) -> tuple[Any, list[Any]]:
        """A graph of what `work` launches, and what it returned: tensors that replays fill."""
        now, graph = self.stream(), torch.cuda.CUDAGraph()
        # A capture that fails may leave its own stream behind as the current one.
        with torch.cuda.device(self._device), torch.cuda.stream(now):
            self._side.wait_stream(now)
            try:
                with torch.cuda.stream(self._side):
                    for _ in range(_WARM_UPS):
                        work()
                # Another thread may pin memory or load another model meanwhile.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
                ):
                    outputs = work()
            except RuntimeError as error:
                # Ending such a capture fails too, and does not say why.
                first = error.__context__
                raise error if first is None else first from None
            finally:
                now.wait_stream(self._side)
        return graph, outputs


GRAPHS: dict[str, Callable[[torch.device], CudaGraphs]] = {"cuda": CudaGraphs}  # by device type


def padded(rows: int) -> int:
    """The number of rows for which a step of so many is captured: 1, 2, 4, 8, 16, 24, 32, 48 ..."""
    if rows <= 8:
        return 1 << (rows - 1).bit_length()
    unit = 8 if rows <= 32 else 16 if rows <= 128 else 32
    return -(-rows // unit) * unit


class _Captured(NamedTuple):
    """A captured step or cut: scores and states, or positions before, of ids or `Cut.inputs`.

    `traces` is what layers leave on the device; what is in `owned`, weights or state, stays there.
    """

    graph: Any
    outputs: list[Tensor]
    inputs: Tensor
    traces: list[tuple[Tensor, ...]]
    owned: object


class CapturedStep(DecodeStep):
    """A step that is captured as one graph when a number of rows comes.

    Where a weight has other memory than when it was captured, all is captured anew with the next
    cache. Of two threads the second waits until the first has launched its step. Where it `fuses`,
    what lies between attentions is compiled, for as many rows as are reserved.
    """

    how: ClassVar[str] = "captured as one graph"

    def __init__(self, model: PreTrainedModel, graphs: CudaGraphs, states: Names) -> None:
        self.seconds, self.states, self.graphs, self.fuses = 0.0, states, graphs, False
        self._program, self._model = Program(model, states), weakref.ref(model)
        self._captured: WeakKeyDictionary[DeviceCounts, dict[Hashable, _Captured]]
        self._uncut: set[type[Layer]] = set()  # whose cuts cannot be captured
        self._stream: Any = None
        self._lock = threading.Lock()
        self._bind()

    @property
    def stale(self) -> bool:
        """Whether a weight has other memory than when it was bound."""
        return self._addresses != {name: x.data_ptr() for name, x in self._read().items()}

    def _read(self) -> dict[str, Tensor]:
        """The model's tensors themselves: where it is moved, no alias holds their memory."""
        model = self._model()
        now = {} if model is None else decode_step.constants(model)
        return {name: now[name] for name in self._program.weights if name in now}

    def _bind(self) -> None:
        """Take the model's tensors as they are now."""
        self._weights, self._captured = self._read(), WeakKeyDictionary()
        for name, exported in self._program.weights.items():
            pair = exported, self._weights.get(name)
            kinds = {x is not None and (x.shape, x.stride(), x.dtype, x.device) for x in pair}
            if len(kinds) > 1:
                raise NotCompiled(f"{name} was replaced by another kind of tensor")
        self._addresses = {name: x.data_ptr() for name, x in self._weights.items()}

    def follows(self, cache: AttentionCache) -> bool:
        return cache.refusal is None

    @changing_state
    def run(self, ids: Tensor, positions: Tensor, then: Then | None) -> Sequence[Tensor]:  # noqa: ARG002
        cache, B = decode_step.CALL.get().cache, len(ids)
        if cache.session.model is not self._model():
            allowed = "one of a block on the model that the step was made of"
            raise InvalidValue("cache", f"a cache of {cache.backend.name}", allowed)
        if cache.refusal is not None:
            raise NotCompiled(cache.refusal)
        cache.before(B)
        with self._lock:
            now = self.graphs.stream()
            if self._stream is not None and now != self._stream:
                # Behind the last step, whose memory this one takes.
                self.graphs.follow(now, self._stream)
            self._stream = now
            try:
                step, counts = cache.open_step(padded(B))
                key = padded(B), counts.dense, then
                if key not in self._captured.get(counts, {}):
                    if self.stale:
                        self._bind()
                    graph = self._capture(cache, counts, padded(B), then)
                    self._captured.setdefault(counts, {})[key] = graph
                region = self._captured[counts][key]
            except torch.OutOfMemoryError as error:
                raise NotCompiled.because(error) from error
            except NotCompiled:
                cache.release()  # what the device knows of rows is written anew
                raise
            region.inputs[:B].copy_(ids)
            region.graph.replay()
            outputs = [output[:B].clone() for output in region.outputs]
            # Behind the copies: a graph that cuts rows may write where outputs lie.
            cache.close_step(step, _copied(region.traces), partial(self._shorten, counts))
            return outputs

    def _capture(
        self, cache: AttentionCache, counts: DeviceCounts, rows: int, then: Then | None
    ) -> _Captured:
        ids = torch.zeros(rows, 1, dtype=torch.int64, device=counts.device)
        # An alias holds the memory that is read, even where a weight gets other memory meanwhile.
        values = {name: x.detach() for name, x in self._weights.items()} | self._program.extra
        layers = cache.layers
        # Fewer rows come when a run ends, where compiling does not pay.
        fused = self.fuses and rows == counts.rows

        def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float, at: int, _: object) -> Tensor:
            return layers[at].step(q, k, v, scaling, counts)

        def run(fused: bool) -> list[Tensor]:
            inputs = ids, counts.seen[:rows, None].long()
            return self._program.run(values, inputs, attend, fused)

        def work() -> list[Tensor]:
            for layer in layers:
                layer.traces = ()
            outputs = run(fused)
            if then is not None:
                outputs[:1] = then(outputs[0], ids, counts.live[:rows])
            counts.end_step(rows)
            return [*outputs, *(x for layer in layers for x in layer.traces)]

        with _restored([counts.live, *(x for layer in layers for x in layer.written)]):
            counts.live.zero_()  # what warms up and what is captured changes no row
            try:
                self.fuses = self.fuses and not (fused and not _fuses(run))
                fused = fused and self.fuses
                graph, outputs = self.graphs.capture(work)
            except RuntimeError as error:  # torch's, where work cannot be captured
                reason = NotCompiled.because(error)
                raise NotCompiled(f"a step of {rows} rows cannot be captured: {reason}") from error
        traces = [layer.traces for layer in layers]
        edge = len(outputs) - sum(map(len, traces))
        return _Captured(graph, outputs[:edge], ids, traces, values)

    def _shorten(
        self, counts: DeviceCounts, cut: Cut, layers: Sequence[Layer]
    ) -> Sequence[Tensor] | None:
        """Cut rows of layers by one graph; None where their cuts cannot be captured."""
        places, method = power_of_two(len(cut.rows), 1), type(layers[0])
        which = tuple(layer.geometry.index for layer in layers)
        key = places, cut.size, cut.most, cut.window, which
        cuts = self._captured.setdefault(counts, {})
        if key not in cuts and method not in self._uncut:
            try:
                cuts[key] = self._capture_cut(counts, cut, layers, places)
            except RuntimeError as error:
                self._uncut.add(method)
                reason = f"{method.__name__}.rank runs as it is: {NotCompiled.because(error)}"
                warnings.warn(reason, CompileWarning, stacklevel=2)
        if key not in cuts:
            return None
        cuts[key].inputs.copy_(devices.put(cut.inputs(places), counts.device))
        cuts[key].graph.replay()
        return _copied([tuple(cuts[key].outputs)])[0]

    def _capture_cut(
        self, counts: DeviceCounts, cut: Cut, layers: Sequence[Layer], places: int
    ) -> _Captured:
        inputs = devices.put(0 * cut.inputs(places), counts.device)
        state = [slots for layer in layers for slots in layer.state.values()]
        written = fixed(*state)
        written += [layer.store.lengths for layer in layers if layer.store is not None]
        # Warming up cuts the first row.
        with _restored([x[:1] for x in written]), ExitStack() as stack:
            for layer in layers:
                stack.enter_context(layer.hooking(counts.rows))  # of which more may come
            owned = [(slots.data, slots.flat) for slots in state]
            work = partial(layers[0].shorten_together, cut, inputs, layers)
            return _Captured(*self.graphs.capture(work), inputs, [], owned)


@contextmanager
def _restored(memories: Sequence[Tensor]) -> Iterator[None]:
    """Inside, work may warm up and be captured on what it would change."""
    before = [x.clone() for x in memories]
    try:
        yield
    finally:
        for memory, x in zip(memories, before, strict=True):
            memory.copy_(x)


def _fuses(run: Callable[[bool], list[Tensor]]) -> bool:
    """Whether a step compiled between attentions gives the same; else a warning has the reason."""
    try:
        with decode_step.quiet():
            scores = run(True)[0]
        wanted = run(False)[0]
        gap = float((scores - wanted).abs().amax() / wanted.abs().amax())
        if gap <= decode_step.TOLERANCE.get(wanted.dtype, 0.0):
            return True
        reason: object = f"scores differ by {gap:.2g}"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever tracer, code generator or compilers raise
        reason = NotCompiled.because(error)
    warnings.warn(f"steps are captured and not compiled: {reason}", stacklevel=2)
    return False


def _copied(traces: Sequence[tuple[Tensor, ...]]) -> Sequence[tuple[Tensor, ...]]:
    """Copies in one launch: where traces lie another graph of the pool may write."""
    every = [x for trace in traces for x in trace]
    if not every:
        return traces
    parts = torch.split(torch.cat([x.flatten() for x in every]), [x.numel() for x in every])
    copies = iter([part.view_as(x) for part, x in zip(parts, every, strict=True)])
    return [tuple(next(copies) for _ in trace) for trace in traces]


_KEPT: WeakKeyDictionary[PreTrainedModel, dict[str, CapturedStep]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def captured(
    model: PreTrainedModel, cache: AttentionCache, key: str, states: Names, make: bool, fuse: bool
) -> CapturedStep | None:
    """A model's step as graphs, kept while the model lives; `make`, `fuse` as in `compiled`."""
    with _LOCK:
        steps = _KEPT.setdefault(model, {})
        step = steps.get(key)
        if step is not None:
            step.seconds = 0.0  # who asks now has waited for nothing
            step.fuses |= fuse
            return step
        if not make:
            return None
        # What was captured of weights that are gone holds their memory.
        for old in [name for name, old_step in steps.items() if old_step.stale]:
            del steps[old]
        started = time.perf_counter()
        try:
            step = CapturedStep(model, GRAPHS[model.device.type](model.device), states)
            decode_step.probe(step, model, cache)
        except RuntimeError as error:  # of the device
            raise NotCompiled.because(error) from error
        step.seconds, step.fuses = time.perf_counter() - started, fuse
        steps[key] = step
        return step

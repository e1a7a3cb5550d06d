"""A decode step as one CUDA graph: lengths, slots and choices are tensors on the device.

A graph is captured for a number of rows (`padded`) on the memory of one cache, and replayed for as
long as that memory lies where it is: rows grow, come and go, and nothing is captured anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from attention.engines.gpu import DeviceCounts
from attention.patching.attention_op import CALL
from attention.patching.cache import AttentionCache
from attention.patching.decode_step import NotCompiled
from attention.patching.graph_split import computed
from attention.patching.graphed import Graph, GraphedStep, Graphs, padded

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class _Region(NamedTuple):
    """A captured step: its graph, the tokens that it reads, (R, 1), scores and states.

    `traces` is what layers leave on the device; `values`, what is read of the model, stay there.
    """

    graph: Graph
    ids: Tensor
    outputs: list[Tensor]
    traces: list[tuple[Tensor, ...]]
    values: dict[fx.Node, Tensor]


_Regions = dict[tuple[int, bool], _Region]


class CapturedStep(GraphedStep):
    """A step that is one graph where every layer of the cache has `steps`; else in pieces."""

    how: ClassVar[str] = "captured as one graph"

    def __init__(
        self,
        program: ExportedProgram,
        model: PreTrainedModel,
        graphs: Graphs,
        states: tuple[str, ...] = (),
    ) -> None:
        super().__init__(program, model, graphs, states)
        self._regions: WeakKeyDictionary[DeviceCounts, _Regions] = WeakKeyDictionary()

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, ids: Tensor, positions: Tensor) -> Sequence[Tensor]:
        cache, B = CALL.get().cache, len(ids)
        if cache.refusal is not None:
            return super().run(ids, positions)
        with self._lock:
            self._follow()
            step, counts = cache.open_step(padded(B))
            region = self._region(cache, counts, padded(B))
            region.ids[:B].copy_(ids)
            region.graph.replay()
            cache.close_step(step, region.traces)
            return [output[:B].clone() for output in region.outputs]

    def _region(self, cache: AttentionCache, counts: DeviceCounts, rows: int) -> _Region:
        """The graph of a number of rows of a cache; weights are compared where it is captured."""
        regions, key = self._regions.setdefault(counts, {}), (rows, counts.dense)
        if key not in regions:
            if self.stale:
                self._captured.clear()
                self._regions.clear()
                self._bind()
                regions = self._regions.setdefault(counts, {})
            regions[key] = self._whole(cache, counts, rows)
        return regions[key]

    def _whole(self, cache: AttentionCache, counts: DeviceCounts, rows: int) -> _Region:
        ids = torch.zeros(rows, 1, dtype=torch.int64, device=counts.device)
        layers, piece, known = cache.layers, self._cut.whole, dict(self._cut.extra)
        known |= {node: weight.tensor for node, weight in self._weights.items()}
        place = self._cut.inputs

        def attend(
            q: Tensor, k: Tensor, v: Tensor, scaling: float, layer: int, _: object
        ) -> Tensor:
            return layers[layer].step(q, k, v, scaling, counts)

        def work() -> list[Tensor]:
            positions = counts.seen[:rows, None].long()
            values = known | dict(zip(place, (ids, positions), strict=True))
            for layer in layers:
                layer.traces = ()
            outputs = computed(piece, values, attend)
            counts.end_step(rows)
            return [*outputs, *(x for layer in layers for x in layer.traces)]

        live = counts.live.clone()
        counts.live.zero_()  # what warms up and what is captured changes no row
        try:
            graph, outputs = self.graphs.capture(work)
        except RuntimeError as error:  # torch's, where work cannot be captured
            reason = NotCompiled.because(error)
            raise NotCompiled(f"a step of {rows} rows cannot be captured: {reason}") from error
        finally:
            counts.live.copy_(live)
        traces = [layer.traces for layer in layers]
        return _Region(graph, ids, outputs[: len(piece.gives)], traces, known)

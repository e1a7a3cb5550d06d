"""What a GPU would refuse to capture is refused here, and what it could not see does not happen.

`tests.graphs` stands in for CUDA graphs; these tests hold both to what such graphs are.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_graphed import PROMPTS, build, replayed, step_of
from test_waits import waiting
from tiny_models import asked
from torch import Tensor

import attention
from attention.patching import graphed
from attention.patching.cache import AttentionCache
from attention.patching.graphed import CudaGraphs, Graphs
from tests.graphs import CaptureError, StandIn, on_a_cpu
from tests.waits import WaitingError

CPU = torch.device("cpu")
STEPS = 1000


@pytest.fixture(scope="module")
def small() -> Any:
    return build()


@pytest.fixture(autouse=True)
def _graphs() -> Iterator[None]:
    with on_a_cpu():
        yield


def standing_in() -> StandIn:
    """One that was asked for its stream, as a step does first."""
    graphs = StandIn(CPU)
    graphs.stream()
    return graphs


# ---------------------------------------------------------------- the stand-in is like a graph


def test_a_replay_does_what_was_captured_with_what_is_there():
    """The same numbers of Python on the same memory, whatever became of the variables."""
    x, factor = torch.ones(3), 2
    graphs = standing_in()

    def work() -> list[Any]:
        y = x * factor
        y[1:].add_(1)
        return [y, y.view(3, 1)[1:] + x.sum(), len(x)]

    graph, (y, z, n) = graphs.capture(work)
    assert y.isnan().all()
    assert z.isnan().all()
    graph.replay()
    assert (y.tolist(), z.tolist(), n) == ([2, 3, 3], [[6], [6]], 3)
    factor = 5
    x.fill_(10)
    graph.replay()
    assert (y.tolist(), z.tolist(), n) == ([20, 21, 21], [[51], [51]], 3)
    x.view(-1)[0] = 0
    graph.replay()
    assert y.tolist() == [0, 21, 21]


def test_what_a_piece_does_not_give_is_not_there_behind_it():
    x, left = torch.ones(3), []

    def work() -> list[Any]:
        left.append(x * 2)
        return [left[-1] + 1]

    graph, (given,) = standing_in().capture(work)
    graph.replay()
    assert given.tolist() == [3, 3, 3]
    assert left[-1].isnan().all()


@pytest.mark.parametrize("what", ["read", "given", "moved"])
def test_memory_that_nobody_holds_is_seen(what):
    held = {"x": torch.ones(3)}
    graph, given = standing_in().capture(lambda: [held["x"] * 2])
    graph.replay()
    if what == "read":
        held["x"] = torch.ones(3)
    elif what == "given":
        given.clear()
    else:
        held["x"].set_(torch.zeros(3))
    with pytest.raises(CaptureError, match="moved" if what == "moved" else "nobody holds"):
        graph.replay()


@pytest.mark.parametrize("name", waiting())
def test_what_waits_is_not_captured(name):
    wait = waiting()[name]

    def work() -> list[Any]:
        wait()
        return []

    with pytest.raises(WaitingError):
        standing_in().capture(work)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.rand_like(x),
        lambda x: x.bernoulli(),
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: x.to("meta"),
        lambda _: torch.zeros(2, device="meta"),
    ],
    ids=["rand_like", "bernoulli", "dropout", "copy", "elsewhere"],
)
def test_what_cannot_be_replayed_is_not_captured(work):
    x = torch.full((3,), 0.5)
    with pytest.raises(CaptureError, match="in a piece"):
        standing_in().capture(lambda: [work(x)])


def test_what_is_read_from_elsewhere_is_not_captured():
    x = torch.zeros(3, device="meta")
    with pytest.raises(CaptureError, match="tensor on meta"):
        standing_in().capture(lambda: [x + 1])


def test_another_stream_is_seen():
    x, graphs = torch.ones(3), standing_in()
    graph, _ = graphs.capture(lambda: [x + 1])
    graph.replay()
    graphs.current = "another"
    for launch in (graph.replay, lambda: graphs.capture(lambda: [x + 1])):
        with pytest.raises(CaptureError, match="another stream"):
            launch()


def test_cuda_graphs_have_the_same_seam():
    assert graphed.GRAPHS["cuda"] is CudaGraphs
    for name in ("stream", "follow", "capture"):
        wanted = inspect.signature(getattr(Graphs, name))
        for kind in (CudaGraphs, StandIn):
            assert list(inspect.signature(getattr(kind, name)).parameters) == list(
                wanted.parameters
            ), (kind, name)


class Runtime:
    """As much of `torch.cuda` as a capture calls; what is done on which stream is written down."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.current = self.first = self.Stream("cuda")
        self.first.name, self.log, self.failing = "first", [], False
        for name in ("Stream", "stream", "graph", "device"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "current_stream", lambda _: self.current)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        patch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
        log = self.log

        def waits(stream: Any, other: Any) -> None:
            log.append(f"{stream.name} waits for {other.name}")

        patch.setattr(self.Stream, "wait_stream", waits, raising=False)

    class Stream:
        name = "side"

        def __init__(self, _: Any) -> None:
            pass

    @contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: str, *, pool: str, stream: Any, capture_error_mode: str) -> Any:
        self.log.append(f"{graph} begins in {pool} on {stream.name}, {capture_error_mode}")
        self.current = stream
        try:
            yield
        finally:
            if self.failing:  # as torch's own, which then leaves its stream behind
                raise RuntimeError("operation failed due to a previous error during capture")
            self.current = self.first
            self.log.append("ends")

    def work(self) -> list[Any]:
        self.log.append(f"work on {self.current.name}")
        if self.failing and len(self.log) > 4:
            raise ValueError("cannot be captured")
        return [1]


def test_cuda_is_asked_as_its_graphs_want_it(monkeypatch):
    """Warm-ups on the side stream, both ways waited for; the real thing has not run here."""
    cuda = Runtime(monkeypatch)
    graphs = CudaGraphs(torch.device("cuda"))
    assert graphs.capture(cuda.work) == ("graph", [1])
    assert cuda.log == [
        "side waits for first",
        *["work on side"] * 2,
        "graph begins in pool on side, thread_local",
        "work on side",
        "ends",
        "first waits for side",
    ]
    graphs.follow(graphs.stream(), graphs._side)
    assert cuda.log[-1] == "first waits for side"
    cuda.log.clear()
    cuda.failing = True
    with pytest.raises(ValueError, match="cannot be captured"):
        graphs.capture(cuda.work)
    assert cuda.current is cuda.first


# ---------------------------------------------------------------- steps are safe to capture


def watching(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    """Note where keys, queries and values lie that attention is given, and where it is launched."""
    attend = AttentionCache.attend

    def noted(self: Any, index: int, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
        seen.append((index, len(q), *(x.data_ptr() for x in (q, k, v))))
        return attend(self, index, q, k, v, *more)

    monkeypatch.setattr(AttentionCache, "attend", noted)


def test_every_buffer_stays_where_it_is(monkeypatch):
    """For a thousand steps of three rows, of which now and then one is not there."""
    small = build(layers=1)
    step = step_of(small)
    seen: list[Any] = []
    ids = torch.tensor([[5, 6, 7]] * 3)
    with torch.inference_mode(), attention.get("sink", budget=16).on(small) as cache:
        small(ids, past_key_values=cache)
        two = cache.clone([0, 1])
        watching(monkeypatch, seen)
        newest = ids[:, -1:]
        for turn in range(STEPS):
            held = two if turn % 7 == 3 else cache
            at = held.seen[:, None]
            newest = step(held, newest[: len(at)], at).argmax(-1, keepdim=True)
            if len(newest) < 3:
                newest = newest[[0, 1, 0]]
    assert len(seen) == STEPS
    # For two rows and for three: queries, keys and values always at the same three places.
    assert len(set(seen)) == 2
    assert len({at for one in seen for at in one[2:]}) == 2 * 3
    late = sum(turn % 7 == 3 for turn in range(STEPS))
    replays = sorted({piece.replays for piece in step.graphs.pieces})
    # One more when it was captured, and two rows once more: the comparison with the model.
    assert replays == [late + 2, STEPS - late + 1]


def test_everything_runs_on_the_stream_that_a_step_begins_on(small, tokenizer, monkeypatch):
    step = step_of(small)
    graphs = step.graphs
    graphs.launches.clear()
    graphs.follows.clear()
    rows = asked(PROMPTS, max_new_tokens=[9] * 4)
    replayed(small, tokenizer, rows, batch_size=2)
    assert {stream for _, stream in graphs.launches} == {graphs.current}
    assert graphs.follows == []
    assert len(graphs.launches) > 3 * 9
    first, graphs.current = graphs.current, "a side stream"
    graphs.launches.clear()
    replayed(small, tokenizer, rows, batch_size=2)
    assert {stream for _, stream in graphs.launches} == {"a side stream"}
    assert graphs.follows == [("a side stream", first)]

    def elsewhere(*_: Any) -> Tensor:
        graphs.current = "the stream of a method"
        return attend(*_)

    attend = AttentionCache.attend
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attention.get("full").on(small) as cache:
        small(ids, past_key_values=cache)
        monkeypatch.setattr(AttentionCache, "attend", elsewhere)
        with pytest.raises(CaptureError, match="another stream"):
            step(cache, ids[:, :1], torch.tensor([[3]]))
    graphs.current = first


def test_pieces_read_what_is_held_and_give_what_is_read(small):
    """Weights, inputs and what other pieces give: nothing else, and no host number but sizes."""
    step = step_of(small)
    weights = {weight.address for weight in step._weights.values()}
    for rows in step._captured.values():
        known = weights | {x.data_ptr() for x in rows._held.values() if isinstance(x, Tensor)}
        assert {x.data_ptr() for x in rows.inputs + rows.outputs} <= known
    for piece in step.graphs.pieces:
        assert len(piece.operations) > 10
        assert piece.replays > 0


def test_rows_that_fill_up_are_no_rows_of_attention(small, monkeypatch):
    seen: list[Any] = []
    ids = torch.tensor([[5, 6, 7]] * 5)
    with torch.no_grad(), attention.get("full").on(small) as cache:
        small(ids, past_key_values=cache)
        step = step_of(small)
        watching(monkeypatch, seen)
        scores = step(cache, ids[:, :1], cache.seen[:, None])
    assert 8 in step.sizes
    assert {rows for _, rows, *_ in seen} == {5}
    assert len(scores) == 5

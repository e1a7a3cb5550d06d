"""Decode steps whose lengths are on the device: kernels, methods and captures, interpreted.

Run with TRITON_INTERPRET=1, as `test_triton` does. Memory that nobody wrote is NaN, and so is what
must not be read.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import attention
import lil
from attention.core.kernels import dense_with_mass
from attention.engines import ENGINES, gpu
from attention.engines.gpu import interpreted
from attention.methods.snapkv import SnapKVLayer
from attention.patching import program
from attention.patching.captured import padded
from attention.patching.compiled import compiled
from attention.patching.decode_step import NotCompiled
from attention.testing.driving import prefill, step, text, tiny_model
from lil.decoding.compiling import CompileWarning
from lil.decoding.loop import DecodeLoop
from lil.penalties import lz
from tests.attention.interpreting import ORDERS, interpreting
from tests.attention.oracles.decode_query import attended
from tests.graphs import Piece, on_a_cpu
from tests.lil.penalty_cases import build as penalty
from tests.lil.tiny_models import WORDS, build_model, build_tokenizer, near, requests_of
from tests.waits import Guard, watched

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or not interpreted(),
        reason="needs the extra triton and TRITON_INTERPRET=1",
    ),
    pytest.mark.filterwarnings("error::attention.errors.CompileWarning"),
]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _interpreter() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # what is empty is filled with NaN
    with interpreting():
        yield
    torch.use_deterministic_algorithms(False)


class Case:
    """Random rows of one layer; what no row holds is NaN.

    Args:
        seen: tokens of each row before the step; below 0 for a place that is free.
        first: slots that stay in front of a ring, of each row.
    """

    def __init__(
        self,
        seen: list[int],
        place: str = "append",
        H: int = 2,
        G: int = 2,
        D: int = 64,
        capacity: int = 40,
        limit: int | None = None,
        first: list[int] | None = None,
        sinks: bool = False,
        seed: int = 0,
    ) -> None:
        self.seen, self.place, self.H, self.G, self.D = seen, place, H, G, D
        self.capacity, self.limit, self.first = capacity, limit or capacity, first
        R, draw = len(seen), torch.Generator().manual_seed(seed)
        self.random = lambda *shape: torch.randn(*shape, generator=draw)
        # Strides as those of slices of one product, one more row of state than of the step.
        self.q, self.k, self.v = (
            self.random(R, 1, heads, D + 16)[..., :D].transpose(1, 2) for heads in (H * G, H, H)
        )
        self.keys, self.values = (torch.full((R + 1, H, capacity, D), torch.nan) for _ in range(2))
        self.next = torch.full((R + 1, H, 1), -1)
        self.position = torch.full((R + 1, H, capacity), -1, dtype=torch.int32)
        self.sinks = self.random(H * G) if sinks else None
        self.counts = gpu.DeviceCounts(R + 1, capacity, CPU)
        self.counts.write(np.maximum(seen, 0), {})
        self.counts.live[:R] = torch.tensor([n >= 0 for n in seen])
        for r, n in enumerate(seen):
            used = min(max(n, 0), self.limit)
            for x in (self.keys, self.values):
                x[r, :, :used] = self.random(H, used, D)
            if place == "next":
                for h in range(H):
                    order = torch.randperm(used, generator=draw)
                    self.position[r, h, :used] = (order + max(n - used, 0)).int()
                    self.next[r, h] = n if n < self.limit else int(order[0])
        self.before = self.keys.clone(), self.values.clone()

    def store(self, **more: Any) -> gpu.Store:
        first = self.counts.number("first")
        first[: len(self.seen)] = torch.tensor(self.first or [0] * len(self.seen))
        seen = self.counts.seen
        fixed = (self.keys, self.values, seen, self.limit, self.place)
        return gpu.Store(0, *fixed, first=first, sink_logits=self.sinks, **more)

    def own(self, r: int, h: int) -> int:
        """Where the new token of a set goes."""
        n, first = self.seen[r], (self.first or [0] * len(self.seen))[r]
        if self.place == "next":
            return int(self.next[r, h])
        if self.place == "append" or n < first:
            return n
        return first + (n - first) % (self.limit - first)

    def expected(self, r: int, h: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Output, probabilities by slot and log-sums of a set, by loops in float64."""
        n, own = min(self.seen[r] + 1, self.limit), self.own(r, h)
        k, v = (x[r, h].clone() for x in self.before)
        k[own], v[own] = self.k[r, h, 0], self.v[r, h, 0]
        q = self.q[r, h * self.G : (h + 1) * self.G, 0].double() * 0.3
        sinks = None if self.sinks is None else self.sinks[h * self.G : (h + 1) * self.G]
        return attended(q, k, v, range(n), sinks)

    def check(self, out: Tensor) -> None:
        """Outputs, and what was stored: the new token and nothing else."""
        out = out.view(len(self.seen), self.H, self.G, self.D)
        wanted = [x.clone() for x in self.before]
        for r, n in enumerate(self.seen):
            if n < 0:
                assert (out[r] == 0).all()
                continue
            for h in range(self.H):
                due = self.expected(r, h)[0]
                np.testing.assert_allclose(out[r, h].numpy(), due, atol=5e-6)
                for x, new in zip(wanted, (self.k, self.v), strict=True):
                    x[r, h, self.own(r, h)] = new[r, h, 0]
        for x, due in zip((self.keys, self.values), wanted, strict=True):
            assert torch.equal(x.nan_to_num(9), due.nan_to_num(9))

    def run(self, store: gpu.Store, **more: Any) -> Tensor:
        return gpu.attend(self.counts, store, self.q, self.k, self.v, 0.3, **more)


@pytest.mark.parametrize(
    "case",
    [
        {"seen": [0, 1, -1, 15, 16, 17, 38, 39], "H": 1},
        {"seen": [100, 3], "G": 8, "D": 128, "capacity": 160, "sinks": True},
        {"seen": [47], "G": 1, "H": 3, "capacity": 48},
        {"seen": [31, -1, 0], "G": 5, "D": 24, "sinks": True},
        {
            "seen": [0, 5, 19, 20, 33, 59],
            "place": "ring",
            "limit": 20,
            "first": [0, 4, 3, 4, 19, 0],
        },
        {"seen": [0, 7, 20, 35, -1], "place": "next", "limit": 20, "G": 7, "sinks": True},
    ],
)
def test_a_step_reads_what_rows_hold_and_stores_the_new_token(case: dict[str, Any]) -> None:
    rows = Case(**case)
    extra = {}
    if rows.place == "next":
        none = rows.counts.number("none")
        extra["eviction"] = gpu.Eviction("last", rows.next.clone(), none, none)
        extra["position"] = rows.position
    rows.counts.reads = {}
    rows.check(rows.run(rows.store(**extra)))
    (read,) = (x.sum(-1) for x in rows.counts.reads.values())
    due = [min(n + 1, rows.limit) if n >= 0 else 0 for n in rows.seen]
    assert read.tolist() == [[n] * rows.H for n in due]


def test_two_steps_of_other_lengths_share_their_scratch() -> None:
    """A split that has nothing leaves an earlier step's numbers, which nobody reads."""
    long, short = Case([39, 38]), Case([3, -1], seed=1)
    launch, scratch = gpu.launch, dict[str, Tensor]()

    def launched(kernel: Any, *args: Any, **constants: Any) -> None:
        named = dict(zip(kernel.arg_names, args[1:], strict=False))
        for name, x in scratch.items():
            named[name].copy_(x)
        launch(kernel, *args, **constants)
        scratch.update({name: named[name].clone() for name in ("part", "sums")})

    with mock.patch.object(gpu, "launch", launched):
        long.check(long.run(long.store()))
        short.check(short.run(short.store()))


@pytest.mark.parametrize(("place", "first"), [("table", 0), ("stored", 3)])
def test_tables_and_sets_of_query_heads(
    place: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and behind the slots, where the first tokens do not fill their page."""
    monkeypatch.setattr(gpu, "_INTERPRETED_PROCESSORS", 18)  # three splits of pages, one without
    rows, page = Case([133, 122, -1], place=place, H=1, G=4, capacity=144), 24
    own = [(rows.seen[r], r) for r in range(2)]
    for n, r in own:  # the token is in its slot already
        rows.keys[r, 0, n], rows.values[r, 0, n] = rows.k[r, 0, 0], rows.v[r, 0, 0]
    table = torch.full((3, 4, 3), 10_000, dtype=torch.int32)
    read = torch.zeros(3, 4, dtype=torch.int32)
    for r in range(2):
        for h in range(4):
            last = rows.seen[r] // page
            table[r, h] = torch.tensor([h % 2, 2 + h % 3, last])
            read[r, h] = 2 * page + rows.seen[r] % page + 1
    read[1, 3] = 0  # a set without a slot
    pages = gpu.Pages(rows.keys, rows.values, table, read, page, first)
    out = rows.run(rows.store(), pages=pages).view(3, 4, 64)
    for r, h in ((r, h) for r in range(2) for h in range(4)):
        slots = [int(p) * page + i for p in table[r, h] for i in range(page)][: int(read[r, h])]
        if place == "stored":
            slots = [*range(rows.seen[r] + 1), *slots[:first], *slots[page:]]
        k, v = rows.keys[r, 0], rows.values[r, 0]
        due = attended(rows.q[r, h].double() * 0.3, k, v, slots)[0][0]
        np.testing.assert_allclose(out[r, h].numpy(), due, atol=2e-6)
    assert (out[2] == 0).all()


@pytest.mark.parametrize(
    ("worth", "options"),
    [
        ("score", {}),
        ("score", {"each": True}),
        ("last", {"shared": True}),
        ("number", {}),
    ],
)
@pytest.mark.parametrize("sinks", [False, True])
def test_what_is_remembered_and_lost(worth: str, options: dict[str, Any], sinks: bool) -> None:
    rows = Case([38, 50, 39, -1, 41], place="next", limit=40, G=3, sinks=sinks, seed=2)
    if options.get("shared"):  # all heads hold the same tokens
        rows.position[:, 1], rows.next[:, 1] = rows.position[:, 0], rows.next[:, 0]
    options, each = dict(options), options.get("each", False)
    options.pop("each", None)
    shape = (6, 2, 40, 3) if each else (6, 2, 40)
    memory = rows.random(*shape).abs() if worth == "score" else None
    spared, recent = rows.counts.number("spared"), rows.counts.number("recent")
    spared[:5], recent[:5] = torch.tensor([2, 12, 0, 0, 3]), torch.tensor([3, 4, 1, 0, 0])
    if memory is not None:  # the first that does not stay is worth least
        memory[rows.position == spared[:, None, None]] -= 9
    old = None if memory is None else memory.clone()
    numbers = torch.tensor([77, 2**32 - 5])
    following, position = rows.next.clone(), rows.position.clone()
    kind = {"position": position, "eviction": None}
    kind["eviction"] = gpu.Eviction(
        worth, following, spared, recent, memory, numbers if worth == "number" else None, **options
    )
    rows.check(rows.run(rows.store(**kind)))
    last = None
    for r, n in ((r, n) for r, n in enumerate(rows.seen) if n >= 0):
        every = [rows.expected(r, h)[1] for h in range(2)]
        for h in range(2):
            used, own = min(n + 1, 40), rows.own(r, h)
            place = rows.position[r, h].clone()
            place[own] = n
            assert torch.equal(position[r, h], place)
            if worth == "score":
                before = old[r, h, :used].double().numpy()
                before[own] = 0
                gained = every[h].T if each else every[h].sum(0)
                due = before + gained
                np.testing.assert_allclose(memory[r, h, :used].numpy(), due, atol=1e-6)
                value = due.max(-1) if each else due
            elif worth == "last":
                value = np.concatenate(every).mean(0)
            else:
                value = np.array([scrambled(int(numbers[h]) + int(p)) for p in place[:used]], float)
            ages = place[:used].numpy()
            stays = (ages < int(spared[r])) | (ages >= n + 2 - int(recent[r]))
            value = np.where(stays, np.inf, value)
            due_next = n + 1 if n + 1 < 40 else int(value.argmin())
            assert int(following[r, h]) == due_next
            last = due_next
    assert last is not None
    assert (following[3] == rows.next[3]).all()


def test_probabilities_of_slots_count_further_logits_of_the_model() -> None:
    rows = Case([0, 20, 39, -1], sinks=True)
    new = rows.q, rows.k, rows.v, 0.3
    queries = torch.full((5, 4, 3, 64), torch.nan)
    splits = gpu.attend_splits(rows.counts, rows.store(queries=queries), *new, logits=True)
    stored = queries[range(3), :, [n % 3 for n in rows.seen[:3]]]
    assert torch.equal(stored, rows.q[:3, :, 0] * 0.3)
    probs = gpu.probabilities(rows.counts, splits)
    for r, h in ((r, h) for r in range(3) for h in range(2)):
        due = np.pad(rows.expected(r, h)[1], ((0, 0), (0, 39 - rows.seen[r])))
        np.testing.assert_allclose(probs[r, h].numpy(), due, atol=2e-6)
    assert (probs[3] == 0).all()


def scrambled(x: int) -> int:
    from tests.attention.oracles.random import mix

    return mix(x & 0xFFFFFFFF)


def test_the_newest_of_equals_is_lost() -> None:
    """Slots of equal keys get equal bits, whatever split and tile they are in; zeros are equal."""
    rows = Case([90], place="next", limit=80, capacity=80, G=3, H=1)
    rows.keys[:] = rows.keys[0, 0, 0]
    rows.k[:] = rows.keys[0, 0, 0]
    zeros = torch.zeros(2, 1, 80)
    zeros[..., ::2] = -0.0
    for memory in (None, zeros):
        none, following = rows.counts.number("none"), rows.next.clone()
        evicts = gpu.Eviction(
            "score" if memory is not None else "last", following, none, none, memory
        )
        rows.run(rows.store(position=rows.position.clone(), eviction=evicts))
        assert int(following[0, 0]) == int(rows.next[0, 0])  # the new token itself
        rows.counts.number("few")[:1] = 3
        following.copy_(rows.next)
        again = rows.position.clone()
        evicts = gpu.Eviction(evicts.worth, following, none, rows.counts.number("few"), memory)
        rows.run(rows.store(position=again, eviction=evicts))
        assert int(again[0, 0, following[0, 0]]) == 88  # two of the three are 90 and 89
    rows.keys[:, :, ::2] *= 0.5  # two kinds, of which each query thinks otherwise
    evicts = gpu.Eviction("score", following, none, none, torch.zeros_like(zeros))
    rows.run(rows.store(position=again, eviction=evicts))
    assert len(evicts.memory[0].unique()) == 2


@pytest.mark.parametrize("order", ORDERS)
def test_programs_in_any_order_give_the_same_bits(order: str) -> None:
    def bits() -> list[Tensor]:
        rows = Case([5, 50, 40, -1], place="next", limit=40, G=3)
        none, memory = rows.counts.number("none"), torch.zeros(5, 2, 40)
        following, position = rows.next.clone(), rows.position.clone()
        evicts = gpu.Eviction("score", following, none, none, memory)
        out = rows.run(rows.store(position=position, eviction=evicts))
        return [out, following, memory, position, rows.keys.nan_to_num(9)]

    straight = bits()
    with interpreting(ORDERS[order]):
        assert all(torch.equal(x, y) for x, y in zip(straight, bits(), strict=True))


@pytest.mark.parametrize(("band", "sinks"), [(None, False), (7, False), (None, True)])
@pytest.mark.parametrize("past", [[0, 0, 0], [9, 0, 4]])
def test_prompts_give_the_mass_of_the_plain_form(
    band: int | None, sinks: bool, past: list[int]
) -> None:
    """Rows of other lengths, of which some are padded; no probability is written."""
    draw, T, own = torch.Generator().manual_seed(1), 21, [21, 13, 1]
    before, new = torch.tensor(past)[:, None], torch.tensor(own)[:, None]
    S = int((before + new).max())
    q, k, v = (
        torch.randn(3, heads, n, 16, generator=draw) for heads, n in ((4, T), (2, S), (2, S))
    )
    last = (before + new - T + torch.arange(T)).clamp_min(0)
    counts, logits = torch.arange(T) >= T - new, torch.randn(4, generator=draw) if sinks else None
    due = dense_with_mass(q, k, v, 0.3, last, False, counts, band, logits)
    given = ENGINES["triton"].dense_with_mass(q, k, v, 0.3, last, False, counts, band, logits)
    for mine, plain in ((given[0][counts], due[0][counts]), (given[1], due[1])):
        torch.testing.assert_close(mine, plain, atol=2e-6, rtol=1e-5)
    assert given[0].isfinite().all()  # of padding, too
    square = torch.arange(T)[None]
    due = dense_with_mass(q, k[:, :, :T], v[:, :, :T], 0.3, square, True, None, band, logits)
    plain = q, k[:, :, :T], v[:, :, :T], 0.3, square
    given = ENGINES["triton"].dense_with_mass(*plain, True, None, band, logits)
    torch.testing.assert_close(given, due, atol=2e-6, rtol=1e-5)


# Methods, end to end

METHODS = (
    attention.Full(),
    attention.Window(budget=15),
    attention.Sink(budget=16),
    attention.H2O(budget=16),
    attention.TOVA(budget=16),
    attention.Random(budget=17, sinks=2),
    attention.SnapKV(budget=17),
    attention.RKV(budget=18),
    attention.RaaS(budget=16, page=4, keep_prompt=False),
    attention.Quest(budget=16, page=4, dense_layers=0),
    attention.InfLLM(budget=32, n_init=5, block=4, topk=2, n_local=12, repr_topk=2),
    attention.Oracle(budget=16),
    attention.CAOTE(budget=17),
    attention.VaSE(budget=17),
    attention.GKV(budget=18, window=4),
    attention.Duo(budget=16, sinks=3, pattern=[[0.2, 0.9]]),
    attention.Lazy(budget=17, alpha=0.07),
)
VARIANTS = (
    attention.Sink(budget=17, sinks=2, positions="absolute"),
    attention.Sink(budget=40, keep_prompt=True),
    attention.H2O(budget=15, heavy=9, gqa="max", dense_layers=1),
    attention.H2O(budget=40, keep_prompt=True),
    attention.H2O(budget=14, score_from_prefill=False, gqa="mean"),
    attention.TOVA(budget=40, keep_prompt=True),
    attention.Random(budget=40, keep_prompt=True),
    attention.RKV(budget=44, keep_prompt=True),
    attention.RaaS(budget=40, page=4, alpha=0.1, gqa="max"),
    attention.Quest(budget=18, page=3, dense_layers=1, gqa="query_head"),
    attention.InfLLM(budget=32, n_local=11, selection="kv_head"),
    attention.Oracle(budget=16, gqa="max"),
    attention.RKV(budget=18, window=3, buffer=6, shared=True),
    attention.Random(budget=40, every=5, keep_prompt=True, prefix=2),
    attention.Adamas(budget=16, dense_layers=1, threshold_k=1.0, gqa="query_head"),
    attention.Adamas(budget=16, dense_layers=0, threshold_q=1.0, threshold_k=1.0),
    attention.LessIsMore(budget=16, dense_layers=0, sinks=1),
    attention.Kascade(budget=16, gqa="max"),
    attention.Kascade(budget=16, anchors=[], maps=[[0, 1], [1, 0]]),
    attention.Quest(budget=16, page=4, dense_layers=0, rule="moments", gqa="max"),
    attention.H2O(budget=15, budgets=[18, 12], keep_prompt=3),
    attention.RKV(budget=18, budgets=[14, 22]),
    attention.Sink(budget=16, pyramid=2, keep_prompt=6),
    attention.Quest(budget=16, page=4, dense_layers=0, budgets=[8, 24]),
    attention.Oracle(budget=16, pyramid=2.0),
    attention.InfLLM(budget=32, pyramid=0.7),
)
# Models whose keys do not follow their budget alone, which a captured step does not serve.
HOST = (
    attention.H2O(budget=15, gqa="query_head"),
    attention.InfLLM(budget=24, far_position="absolute"),
    attention.Oracle(top_p=0.8),
    attention.Quest(budget=16, page=4, dense_layers=0, share=0.5, least=8),
)


class Both:
    """A cache under the plain engine and one whose steps are captured, fed alike."""

    def __init__(self, models: list[Any], plain: Any, cache: Any, fuse: bool) -> None:
        self.models, self.plain, self.cache = models, plain, cache
        self.step = compiled(models[1], cache, fuse=fuse)
        self.newest = self.read([27, 15, 3])
        self.steps = 0

    def read(self, lengths: list[int]) -> Tensor:
        """Prompts, into empty caches; the tokens behind them."""
        prompts = [text(n, seed=n) for n in lengths]
        caches = zip(self.models, (self.plain, self.cache), strict=True)
        logits = [prefill(model, cache, prompts)[:, -1] for model, cache in caches]
        torch.testing.assert_close(*logits, atol=1e-5, rtol=0)
        return logits[0].argmax(-1)

    def decode(self, steps: int) -> None:
        given: list[tuple[Tensor, Tensor]] = []
        for _ in range(steps):
            # Not what the model says: it repeats itself, and equal blocks tie up to rounding.
            ids = text(len(self.newest), seed=1000 + self.steps)
            wanted = step(self.models[0], self.plain, ids)
            scores = self.step(self.cache, ids[:, None], self.cache.seen[:, None])
            torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=1e-5)
            self.newest = wanted.argmax(-1)
            assert torch.equal(scores.argmax(-1), self.newest)
            assert self.cache.counts is not None  # no step of pieces
            self.counted()
            self.steps += 1
            given.append((scores, scores.clone()))
        assert all(torch.equal(*pair) for pair in given)  # a later step leaves them

    def counted(self) -> None:
        """Kernels read what the host counts, and what is kept and read is the plain engine's."""
        stats, plain = self.cache.row_stats(), self.plain.row_stats()
        assert torch.equal(stats.keys_read, plain.keys_read)
        counts, seen = self.cache.counts, self.cache.seen.numpy()
        for index, layer in enumerate(self.cache.layers):
            read = counts.reads[index, padded(len(seen)), bool(layer.traces)].sum(-1)
            chosen = layer.measured(seen)
            reads = layer.reads(seen) if chosen is None else chosen[0].long().numpy()
            due = np.pad(reads, (0, len(read) - len(seen)))
            assert (read == torch.from_numpy(due)[:, None]).all()
            for look in ("kept_positions", "read_positions"):
                both = (getattr(x, look)(index) for x in (self.cache, self.plain))
                for mine, theirs in zip(*both, strict=True):
                    assert torch.equal(mine, theirs), look

    def arrive(self, lengths: list[int], places: list[int] | None = None, steps: int = 0) -> None:
        """Newcomers behind the others, or in their places, after some steps of their own."""
        new = Both.__new__(Both)
        new.models, new.plain, new.cache = self.models, self.plain.new(), self.cache.new()
        new.step, new.steps, new.newest = self.step, 500, new.read(lengths)
        new.decode(steps)
        newest = new.newest
        for mine, theirs in ((self.plain, new.plain), (self.cache, new.cache)):
            if places is None:
                mine.append_rows(theirs)
            else:
                mine.replace_rows(places, theirs)
        if places is None:
            self.newest = torch.cat((self.newest, newest))
        else:
            self.newest[places] = newest

    def leave(self, rest: list[int]) -> None:
        for cache in (self.plain, self.cache):
            cache.select_rows(rest)
        self.newest = self.newest[rest]


@contextmanager
def captured(backend: Any, layers: int, fuse: bool = False) -> Iterator[Both]:
    make = gpu.DeviceCounts.__init__
    models = [tiny_model(layers, dtype=torch.float32) for _ in range(2)]

    def counting(self: Any, *args: Any) -> None:
        make(self, *args)
        self.reads = {}

    with (
        torch.no_grad(),
        on_a_cpu(),
        mock.patch.object(gpu.DeviceCounts, "__init__", counting),
        backend.on(models[0], "torch") as plain,
        backend.on(models[1], "triton") as cache,
    ):
        yield Both(models, plain, cache, fuse)


def each(backends: tuple[Any, ...], *quick: int) -> Any:
    """A test of each; those that are not quick are slow ones."""
    marks = [[] if i in quick else pytest.mark.slow for i in range(len(backends))]
    cases = enumerate(zip(backends, marks, strict=True))
    every = [pytest.param(x, marks=mark, id=f"{i} {x.name}") for i, (x, mark) in cases]
    return pytest.mark.parametrize("backend", every)


@each(METHODS)
def test_a_captured_method_equals_the_plain_engine(backend: Any) -> None:
    """Rows leave, arrive behind the others and in their places; 52 steps."""
    with captured(backend, layers=1) as both:
        both.decode(22)
        both.leave([0, 2])
        both.decode(6)
        both.arrive([22])
        both.decode(8)
        both.arrive([5], [0])
        both.decode(8)
        both.arrive([9, 18])
        both.decode(8)
        assert sum(piece.replays for piece in both.step.graphs.pieces) >= 52


@each(VARIANTS, 2, 9, 10, 16, 18)  # full is below
def test_so_do_their_parameters(backend: Any) -> None:
    with captured(backend, layers=2) as both:
        both.decode(8)
        both.leave([0, 2])
        both.arrive([22, 5])
        both.decode(8)


@each((METHODS[9], attention.InfLLM(budget=36, n_local=16, block=4, topk=2)), 0, 1)
def test_a_choice_begins_with_the_first_token_beyond_the_budget(backend: Any) -> None:
    with captured(backend, layers=1) as both:
        both.leave([1])
        both.decode(3)  # 16 tokens are read whole


@each(HOST, 0, 1, 2, 3)
def test_what_needs_the_host_is_named(backend: Any) -> None:
    with (
        captured(backend, layers=2) as both,
        pytest.raises(NotCompiled, match="the host"),
    ):
        both.decode(1)


#: Launches of a layer that chooses; two of all others.
LAUNCHES = {"duo": 4, "raas": 3, "quest": 4, "infllm": 4, "oracle": 4}
#: Operations that start nothing on a device.
FREE = {"empty", "new_empty", "view", "_unsafe_view", "alias", "slice", "select", "detach"}
FREE |= {"lift_fresh", "split_with_sizes", "unbind"}


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@each(METHODS[:-1], 0, 3, 9, 10)  # lazy has hooks
def test_a_layer_is_always_the_same_launches_and_nothing_else(backend: Any) -> None:
    """1,000 steps, over lengths and cuts: kernels, grids, numbers and addresses; nobody waits."""
    model = tiny_model(1, dtype=torch.float32)
    q, k, v = (torch.zeros(4, heads, 1, 16) for heads in (4, 2, 2))
    seen: dict[bool, Any] = {}
    with torch.no_grad(), backend.on(model, "triton") as cache:
        prefill(model, cache, [text(n, seed=n) for n in (27, 15, 3)])
        cache.reserve(4, 2048)
        layer = cache.layers[0]
        lasting = {x.data_ptr() for x in (q, k, v, *(s.fixed for s in layer.state.values()))}
        started: list[Any] = []

        def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
            tensors = [x.data_ptr() for x in args if isinstance(x, Tensor)]
            numbers = [x for x in args if not isinstance(x, Tensor)]
            here = [x if x in lasting else 0 for x in tensors]
            started.append((kernel.__name__, grid, numbers, here, constants))

        for _ in range(1000):
            forward, counts = cache.open_step(4)
            started.clear()
            with mock.patch.object(gpu, "launch", launch), Guard().on(), _Operations() as ran:
                layer.step(q, k, v, 0.5, counts)
            gathered = {"index_select", "index_copy_"} if backend.name == "duo" else set()
            assert ran.names.keys() <= FREE | gathered
            assert seen.setdefault(counts.dense, [*started]) == started
            cache.close_step(forward, [x.traces for x in cache.layers])
        assert cache.counts is counts
    assert len(seen[min(seen)]) == LAUNCHES.get(backend.name, 2)


@each(METHODS[6:9], 0)
def test_a_step_that_cuts_rows_replays_one_graph_more(backend: Any, monkeypatch: Any) -> None:
    """And two copies, of what that reads and of positions, however many layers there are."""
    replay = Piece.replay

    def unseen(piece: Piece) -> None:
        with _disable_current_modes():
            replay(piece)

    monkeypatch.setattr(Piece, "replay", unseen)
    with captured(backend, layers=3) as both:
        monkeypatch.setattr(gpu, "launch", lambda *_, **__: None)
        graphs, steps, ids = both.step.graphs, dict[int, list[Counter[str]]](), both.newest[:, None]
        for _ in range(24):
            graphs.launches.clear()
            with _Operations() as ran:
                both.step(both.cache, ids, ids)
            if ("capture", graphs.current) not in graphs.launches:
                steps.setdefault(len(graphs.launches), []).append(ran.names)
    plain, cuts = steps[1][0], steps[2]
    assert len(cuts) > 3
    for names in cuts:
        more = {name: n for name, n in (names - plain).items() if name not in FREE}
        assert more == {"copy_": 1, "cat": 1}


def test_rows_cut_at_once_may_keep_other_numbers() -> None:
    """Two rows of as many tokens, of whose prompts one is longer."""
    with captured(attention.RKV(budget=40, keep_prompt=True), layers=1) as both:
        both.leave([0])
        both.arrive([15], steps=12)
        both.decode(15)


def test_three_rows_are_cut_by_a_graph_of_four_places() -> None:
    with captured(attention.SnapKV(budget=17, kernel=1), layers=1) as both:
        both.leave([0])
        both.arrive([22, 18, 9])
        both.decode(1)
        both.leave([0, 1, 2])  # the fourth place is free again
        both.decode(6)


def test_rows_that_come_later_are_cut_by_the_same_graph() -> None:
    with captured(attention.SnapKV(budget=17), layers=1) as both:
        both.cache.session.room = 4, 0
        both.leave([0])
        both.decode(4)
        both.arrive([27], steps=2)
        both.decode(2)


def test_a_cut_that_cannot_be_captured_runs_and_is_named(monkeypatch: Any) -> None:
    rank, reason = SnapKVLayer.rank, r"SnapKVLayer.rank runs as it is: .*__float__"

    def asks(layer: Any, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        return rank(layer, k, q, rows) * (1 + 0 * float(q.sum()))

    monkeypatch.setattr(SnapKVLayer, "rank", asks)
    with (
        pytest.warns(CompileWarning, match=reason) as warned,
        captured(attention.SnapKV(budget=17), layers=2) as both,
    ):
        both.decode(9)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("backend", "first", "torchs"),
    [
        (attention.Kascade(budget=16, anchors=[]), 3, set()),
        (attention.LessIsMore(budget=16, dense_layers=0), 2, {"sort", "topk"}),
    ],
)
def test_reading_what_another_layer_chose_takes_two_launches(
    backend: Any, first: int, torchs: set[str]
) -> None:
    """The layer before it, which reads everything, chooses by a third one or torch's operations."""
    model = tiny_model(2, dtype=torch.float32)
    q, k, v = (torch.randn(1, heads, 1, 16) for heads in (4, 2, 2))
    with torch.no_grad(), backend.on(model, "triton") as cache:
        prefill(model, cache, [text(27)])
        cache.reserve(1, 64)
        forward, counts = cache.open_step(1)
        for layer, due, more in zip(cache.layers, (first, 2), (torchs, set()), strict=True):
            launch = mock.patch.object(gpu, "launch")
            with launch as started, Guard().on(), _Operations() as ran:
                layer.step(q, k, v, 0.5, counts)
            assert started.call_count == due
            assert more <= set(ran.names)
            assert more or set(ran.names) <= FREE
        counts.end_step(1)
        cache.close_step(forward, [x.traces for x in cache.layers])
        with pytest.raises(attention.InvalidValue, match=r"read by layer 1 .*that hands on"):
            cache.layers[1].step(q, k, v, 0.5, cache.open_step(1)[1])  # none does in this step


SAMPLED = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
MARGIN = lil.Margin(below=0.9, end=WORDS[7])
#: What follows the scores of a step, and whether it is in the step's graph.
CHOICES = [
    ({"probes": [MARGIN], "detectors": [lil.Budget(60)]}, True),
    ({**SAMPLED, "probes": [MARGIN]}, True),
    ({"penalties": [penalty("presence_window", pad_token_id=9)]}, True),
    ({**SAMPLED, "penalties": [*map(penalty, ("lz rate", "frequency", "repetition"))]}, True),
    ({**SAMPLED, "penalties": [penalty("presence"), penalty("dry")]}, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "backend", "compile_", "choice"),
    [
        ("llama", attention.H2O(budget=12), "auto", 0),
        ("sliding", attention.Quest(budget=16, page=4, dense_layers=1), "auto", 1),
        ("qwen3", attention.SnapKV(budget=13), "auto", 2),
        ("llama", attention.Full(), "auto", 3),
        ("llama", attention.Sink(budget=12), "auto", 4),
        ("qwen3", attention.SnapKV(budget=13), "off", 1),
        ("llama", attention.InfLLM(budget=24, block=4), "off", 1),
    ],
)
def test_a_run_is_the_same_on_the_device(
    family: str, backend: Any, compile_: str, choice: int
) -> None:
    """Rows end and newcomers take their places; the host looks one step late."""
    model, tokenizer = build_model(family, torch.float32), build_tokenizer()
    prompts = [[5, 6, 7], [9] * 12, [30], [1, 2, 3, 4, 5, 6, 7, 8], [4, 9]]
    rows = requests_of(prompts, max_new_tokens=[22, 7, 1, 14, 9])
    chosen, in_graph = CHOICES[choice]
    options = {"backend": backend, "batch_size": 3, "check_every": 10} | chosen
    plain = lil.decode(model, tokenizer, rows, engine="torch", compile="off", **options)
    scores = DecodeLoop._decode
    with (
        on_a_cpu(),
        watched() as guard,
        warnings.catch_warnings(),
        mock.patch.object(lz, "fused_on", return_value=True),
        mock.patch.object(gpu, "launch", wraps=gpu.launch) as launch,
        mock.patch.object(DecodeLoop, "_decode", autospec=True, side_effect=scores) as scored,
    ):
        warnings.simplefilter("error", CompileWarning)
        mine = lil.decode(model, tokenizer, rows, engine="triton", compile=compile_, **options)
    assert guard.steps > 20
    assert launch.called
    assert scored.call_count == (0 if in_graph and compile_ == "auto" else guard.steps)
    for trace, other in zip(mine, plain, strict=True):
        for name in ("new_ids", "keys_kept_max", "keys_read_max", "keys_read_mean"):
            assert getattr(trace, name) == getattr(other, name), name
        assert trace.to_dict()["signals"] == near(other.to_dict()["signals"], 1e-3)


def test_one_compilation_serves_all_layers() -> None:
    """At the reserved number of rows; fewer run as they are."""
    calls, call = [], program.call
    with (
        captured(attention.H2O(budget=12), layers=4, fuse=True) as both,
        mock.patch.object(program, "call", lambda f, *x: calls.append(f) or call(f, *x)),
    ):
        both.cache.session.room = 4, 64
        both.decode(3)
        assert len(set(calls)) == 3  # before the first attention, between two, behind the last
        both.leave([0, 2])
        calls.clear()
        both.decode(2)
        assert not calls


def test_what_cannot_be_compiled_is_captured_as_it_is() -> None:
    broken = mock.patch.object(program, "call", side_effect=OSError("no compiler"))
    with captured(attention.Full(), layers=1, fuse=True) as both, broken:
        with pytest.warns(UserWarning, match=r"captured and not compiled: OSError: no compiler"):
            both.decode(1)
        both.decode(2)


def test_weights_are_the_models_own() -> None:
    """Changed in place they are read as they are; in other memory they are captured anew."""
    with captured(attention.Full(), layers=1) as both:
        both.decode(2)
        mlps = [model.model.layers[0].mlp for model in both.models]
        for mlp in mlps:
            mlp.up_proj.weight.mul_(-1)
        both.decode(2)
        for mlp in mlps:
            mlp.down_proj.weight.data = -mlp.down_proj.weight.data
            mlp.gate_proj.weight = torch.nn.Parameter(-mlp.gate_proj.weight)
        both.cache = both.cache.clone()
        both.decode(2)


def test_a_step_refuses_what_is_not_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a cache that steps can be copied; what fails half way is not gone on from."""
    with captured(attention.Sink(budget=8, sinks=4), layers=1) as both:
        both.cache.session.room = 4, 1030
        both.decode(1)
        assert (both.cache.counts.rows, both.cache.counts.tokens) == (4, 1280)
        both.arrive([1], [1], steps=2)
        both.decode(3)
        ids = both.newest[:2, None]
        with pytest.raises(attention.InvalidValue, match=r"2 rows.*3 rows"):
            both.step(both.cache, ids, ids)
        other = tiny_model(1, dtype=torch.float32)
        with attention.Full().on(other, "triton") as cache:
            prefill(other, cache, [text(3)])
            with pytest.raises(attention.InvalidValue, match="the model that the step was made"):
                both.step(cache, ids[:1], ids[:1])
        with monkeypatch.context() as broken:
            broken.setattr(type(both.cache.layers[0]), "settle", mock.Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                both.step(both.cache, both.newest[:, None], both.newest[:, None])
        with pytest.raises(RuntimeError, match="failed half way"):
            both.decode(1)

"""Every engine against a loop over slots; what it refuses; what no result depends on.

LIL_TEST_DEVICE=cuda runs those on a GPU that are not about the CPU.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention
from attention.core.step import Occupancy
from attention.engines import ENGINES, QKV, Engine, cpp, select
from attention.errors import InvalidValue
from attention.testing.driving import follow, text, tiny_model
from tests.attention.oracles.decode_query import attended

CPU = torch.device("cpu")
DEVICE = torch.device(os.environ.get("LIL_TEST_DEVICE", "cpu"))
on_the_cpu = pytest.mark.skipif(DEVICE != CPU, reason="about the CPU")
# Largest difference allowed, times the largest value of what is compared.
ALLOWED = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 6e-2}


#: Engines that work on this device; the others are skipped once each.
HERE = [name for name in sorted(ENGINES) if ENGINES[name].refusal(DEVICE, torch.float32) is None]


@pytest.fixture(params=HERE)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


def require_support(engine: Engine, dtype: torch.dtype) -> None:
    reason = engine.refusal(DEVICE, dtype)
    if reason is not None:
        pytest.skip(f"engine {engine.name}: expected {reason}")


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_an_engine_is_here_or_says_why(name: str) -> None:
    require_support(ENGINES[name], torch.float32)
    assert select(name, DEVICE, torch.float32) is ENGINES[name]


def drawn(dtype, *shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(got, want, dtype):
    want, got = torch.as_tensor(want), got.cpu()
    finite = want.isfinite()
    assert torch.equal(got.double()[~finite], want[~finite].double())
    if finite.any():
        difference = (got.double() - want)[finite].abs().max()
        assert difference <= ALLOWED[dtype] * max(1.0, float(want[finite].abs().max()))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(
    ("B", "H", "M", "D", "S"),
    [
        (1, 1, 1, 1, 1),
        (3, 2, 2, 7, 19),
        (2, 1, 5, 32, 1023),
        (2, 2, 1, 16, 1025),
        (1, 1, 2, 128, 3000),
        (2, 1, 7, 64, 70),
        (1, 2, 3, 80, 37),
    ],
)
def test_slots_of_each_row(engine: Engine, dtype, sinks, B, H, M, D, S) -> None:
    require_support(engine, dtype)
    q, wide = drawn(dtype, B, H, M, D), max(dtype, torch.float32, key=lambda d: d.itemsize)
    k, v = (drawn(dtype, B, H, S + 9, D, seed=i) for i in (1, 2))
    counts = np.linspace(1, S, B, dtype=np.int64)[::-1].copy()
    counts[0] = S
    sink_logits = drawn(dtype, H * M, seed=3) if sinks else None
    output = engine.attend(
        QKV(q, k, v, sink_logits), Occupancy(counts, DEVICE), probs=True, lse=True
    )
    assert (output.out.dtype, output.probs.dtype, output.lse.dtype) == (dtype, wide, wide)
    assert output.out.shape == q.shape
    assert output.probs.shape == (B, H, M, S)
    for b in range(B):
        for h in range(H):
            own_sinks = None if sink_logits is None else sink_logits[h * M : (h + 1) * M]
            out, probs, lse = attended(q[b, h], k[b, h], v[b, h], range(counts[b]), own_sinks)
            close(output.out[b, h], out, dtype)
            close(output.probs[b, h, :, : counts[b]], probs, dtype)
            assert (output.probs[b, h, :, counts[b] :] == 0).all()
            close(output.lse[b, h], lse, dtype)
    bare = engine.attend(QKV(q, k, v, sink_logits), Occupancy(counts, DEVICE))
    if DEVICE.type == "cpu":
        assert torch.equal(bare.out, output.out)
    else:  # a GPU's products may be cut into other sums
        close(bare.out, output.out.cpu(), dtype)
    assert bare.probs is None
    assert bare.lse is None


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("page", [1, 3, 16, 1024, 1500])
@pytest.mark.parametrize(("Hkv", "H", "M"), [(1, 1, 3), (2, 2, 1), (2, 4, 1)])
def test_chosen_pages(engine: Engine, dtype, page, Hkv, H, M) -> None:
    require_support(engine, dtype)
    B, D, P = 2, 16, max(5, 2100 // page)
    U = max(3, P // 2)
    k, v = (drawn(dtype, B, Hkv, P * page, D, seed=i) for i in (1, 2))
    q, generator = drawn(dtype, B, H, M, D), torch.Generator().manual_seed(page)
    pages = torch.stack([torch.randperm(P, generator=generator)[:U] for _ in range(B * H)])
    pages = pages.view(B, H, U)
    counts = torch.randint(0, page + 1, pages.shape, generator=generator)
    counts[0, 0] = 0
    pages, counts = pages.to(DEVICE), counts.to(DEVICE)
    for sink_logits in (None, drawn(dtype, H * M, seed=3)):
        output = engine.attend_pages(QKV(q, k, v, sink_logits), pages, counts, page, lse=True)
        bare = engine.attend_pages(QKV(q, k, v, sink_logits), pages, counts, page)
        assert bare.lse is None
        assert torch.equal(bare.out, output.out)  # also of the set that reads nothing
        for b in range(B):
            for h in range(H):
                slots = [
                    p * page + i
                    for p, n in zip(pages[b, h].tolist(), counts[b, h].tolist(), strict=True)
                    for i in range(n)
                ]
                own_sinks = None if sink_logits is None else sink_logits[h * M : (h + 1) * M]
                kv = h * Hkv // H
                out, _, lse = attended(q[b, h], k[b, kv], v[b, kv], slots, own_sinks)
                close(output.out[b, h], out, dtype)
                close(output.lse[b, h], lse, dtype)


def naive_best(q, summaries, n, k, narrow):
    """One set in float64: the best k of n pages, as (number, worth), best first."""
    q, summaries = (x.cpu().double().numpy() for x in (q, summaries))
    worth = [max(float(query @ summaries[i]) for query in q) for i in range(n)]
    if narrow:
        worth = [float(np.float32(x)) for x in worth]
    return sorted(enumerate(worth), key=lambda page: (-page[1], page[0]))[:k]


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize(("Hkv", "H", "M"), [(1, 1, 1), (2, 2, 1), (2, 2, 4), (2, 4, 1)])
@pytest.mark.parametrize(("P", "k"), [(1, 1), (5, 3), (17, 16), (17, 40), (300, 7)])
def test_best_pages(engine: Engine, dtype, Hkv, H, M, P, k) -> None:
    require_support(engine, dtype)
    B, E = 3, 24
    # Small whole numbers: every product is exact, and many are equal.
    q, summaries = (
        drawn(dtype, *shape, seed=i).round().clamp(-2, 2)
        for i, shape in enumerate([(B, H, M, E), (B, Hkv, P + 3, E)])
    )
    summaries[:, :, P // 2] = summaries[:, :, 0]
    competing = Occupancy(np.array([P, max(P // 2, 1), 1]), DEVICE)
    always = (
        torch.tensor([[7], [8], [9]], device=DEVICE),
        torch.tensor([[2], [3], [0]], device=DEVICE),
    )
    pages, counts = engine.best_pages(q, summaries, competing, k, always, 4, first=10)
    assert pages.shape == counts.shape == (B, H, min(k, P) + 1)
    for b, n in enumerate(competing.counts):
        for h in range(H):
            want = naive_best(q[b, h], summaries[b, h * Hkv // H], n, k, False)
            *pairs, last = zip(pages[b, h].tolist(), counts[b, h].tolist(), strict=True)
            assert last == (7 + b, (2, 3, 0)[b])
            assert sorted(pair for pair in pairs if pair[1]) == sorted((10 + p, 4) for p, _ in want)
            # Nobody reads the others, but they are pages that there are, each once.
            assert len({page for page, _ in pairs}) == len(pairs)
            assert all(10 <= page < 10 + P for page, _ in pairs)


@on_the_cpu
@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize(
    "backend",
    [
        attention.Quest(budget=16, page=2, dense_layers=0),
        attention.Quest(budget=16, page=2, dense_layers=0, gqa="max"),
        attention.Oracle(budget=8),
    ],
)
def test_a_model_in_bfloat16_is_ranked_in_float32(
    name: str, backend: attention.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As loops in float64 rank; in bfloat16 many pages tie, and the oldest of them would win."""
    require_support(ENGINES[name], torch.bfloat16)
    kind, compared = backend.layer_class, 0
    choose, page = kind.choose, getattr(backend, "page", 1)

    def checked(self, q, step):
        nonlocal compared
        choice, n = choose(self, q, step), step.longest
        for h, queries in enumerate(q[0].double()):
            keys = self.k.data[0, h, :n].double()
            if page == 1:
                each = (queries @ keys.T).softmax(-1).sum(0)
            else:
                bounds = [(x.amax(0), x.amin(0)) for x in keys.split(page)]
                each = torch.stack([torch.maximum(queries * a, queries * b) for a, b in bounds], 1)
                each = each.sum(-1).amax(0) if backend.gqa == "max" else each.sum((0, 2))
            last = len(each) - 1
            best = each[:last].argsort(descending=True)[: backend.budget // page - 1]
            assert sorted(choice.pages[0, h].tolist()) == [*sorted(best.tolist()), last]
            compared += 1
        return choice

    monkeypatch.setattr(kind, "choose", checked)
    model = tiny_model(1, dtype=torch.bfloat16)
    with torch.no_grad(), backend.on(model, name) as cache:
        follow(model, cache, [text(30, seed=3)], text(40, seed=4)[None])
    assert compared == 80


# What each instruction set can run as well.
RUNS = {"AVX512": [*cpp.BUILDS.values(), cpp.FOR_ALL], "AVX2": [cpp.BUILDS["AVX2"], cpp.FOR_ALL]}


def build_with(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine of C++ run this build."""
    operations = cpp.operations(build)
    if build not in RUNS.get(torch.backends.cpu.get_cpu_capability(), [cpp.FOR_ALL]):
        pytest.skip("this CPU has not the instructions")
    if operations is None:
        pytest.skip("not built")
    monkeypatch.setattr(cpp, "_library", lambda: operations)


builds = pytest.mark.parametrize("build", [*cpp.BUILDS.values(), cpp.FOR_ALL])


@on_the_cpu
@builds
def test_every_build(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build_with(build, monkeypatch)
    for dtype in ALLOWED:
        test_best_pages(ENGINES["cpp"], dtype, 2, 4, 1, 300, 7)
        for D in (7, 8, 24, 80, 128):
            test_slots_of_each_row(ENGINES["cpp"], dtype, True, 2, 1, 7, D, 70)
            test_slots_of_each_row(ENGINES["cpp"], dtype, False, 1, 2, 3, D, 1025)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    scale=st.sampled_from([0.1, 10.0, 300.0]),
)
@pytest.mark.parametrize("name", HERE)
def test_probabilities_whatever_the_logits(name: str, lengths: list[int], scale: float) -> None:
    engine, B, S = ENGINES[name], len(lengths), max(lengths)
    q, k, v = (drawn(torch.float32, B, 2, n, 8, seed=n) for n in (3, S, S))
    occupancy = Occupancy(np.array(lengths), DEVICE)
    out, probs, _ = engine.attend(QKV(q * scale, k, v), occupancy, probs=True)
    assert probs is not None
    assert out.isfinite().all()
    assert (probs >= 0).all()
    assert (probs.sum(-1) - 1).abs().max() < 1e-5
    for row, n in enumerate(lengths):
        assert (out[row] <= v[row, :, :n].amax(1, keepdim=True) + 1e-4).all()


def test_the_engine_is_a_value_one_can_ask_for(engine: Engine) -> None:
    model, prompts = tiny_model(dtype=torch.float32).to(DEVICE), [text(20).to(DEVICE)]
    answers = text(1, 40).to(DEVICE)
    quest = attention.get("quest", budget=32, page=4, dense_layers=0)
    with quest.on(model, engine=engine.name) as cache:
        first = follow(model, cache, prompts, answers)
        assert cache.stats().engine == engine.name
        assert cache.new().session.engine == engine.name
    with quest.on(model) as cache:
        assert (follow(model, cache, prompts, answers) - first).abs().max() < 1e-4
        assert cache.stats().engine == select("auto", DEVICE, torch.float32).name


METHODS = {
    "full": {},
    "sink": {"budget": 16},
    "h2o": {"budget": 16},
    "quest": {"budget": 16, "page": 4, "dense_layers": 0},
    "infllm": {"budget": 16},
    "raas": {"budget": 32, "page": 4, "keep_prompt": False},
    "rkv": {"budget": 16, "window": 4},
    "vase": {"budget": 16},
    "gkv": {"budget": 16, "window": 4},
    "lazy": {"budget": 16, "alpha": 0.03},
    "snapkv": {"budget": 16},
    "tova": {"budget": 16},
    "random": {"budget": 16},
    "oracle": {"budget": 16},
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_give_what_they_give_with_the_plain_engine(engine: Engine, name: str) -> None:
    model, method = tiny_model(layers=1, dtype=torch.float32), attention.get(name, **METHODS[name])
    prompts, answers = [text(n, seed=n).to(DEVICE) for n in (40, 29)], text(2, 5, seed=2).to(DEVICE)
    model = model.to(DEVICE)
    with method.on(model, engine="torch") as cache:
        want = follow(model, cache, prompts, answers)
    with method.on(model, engine=engine.name) as cache:
        assert (follow(model, cache, prompts, answers) - want).abs().max() < 1e-4


@on_the_cpu
def test_what_cannot_work_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    full = attention.get("full")
    half, single = (tiny_model(dtype=d) for d in (torch.float16, torch.float32))
    with pytest.raises(InvalidValue, match=r"a model in .*bfloat16, not float16"):
        full.on(half, engine="cpp").__enter__()
    with full.on(half) as cache:
        assert cache.session.engine == "torch"
    with pytest.raises(InvalidValue, match="did you mean 'torch'"):
        full.on(single, engine="trch").__enter__()
    monkeypatch.setattr("attention.engines.cpp._library", lambda: None)
    with pytest.raises(InvalidValue, match="no compiler was there"):
        full.on(single, engine="cpp").__enter__()
    with full.on(single) as cache:
        assert cache.session.engine == "torch"

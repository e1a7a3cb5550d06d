"""H2O: mass, and who stays."""

from __future__ import annotations

import pytest
import torch
from driving import Bare, follow, model, prefill, step, tokens

import attention
from attention.core.step import Step
from attention.methods.h2o import H2OLayer
from tests.attention.oracles.models import tiny_model


def scores(cache, layer: int = 1) -> torch.Tensor:
    return cache.layers[layer].state["score"].data


@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
def test_mass_grows_by_one_per_query_and_query_head(gqa: str) -> None:
    """Per forward G T per KV head, as nothing of a probability is lost; dropped slots aside."""
    m = model()
    with attention.H2O(budget=64, gqa=gqa).on(m) as cache:
        before = 0.0
        for T in (11, 1, 1, 7):
            if T == 1:
                step(m, cache, tokens(2))
            else:
                with torch.no_grad():
                    m(input_ids=tokens(2, T), past_key_values=cache)
            total = scores(cache).flatten(2).sum(-1)
            assert (total - before - 2 * T).abs().max() < 1e-9
            before = total


def test_mass_of_a_decode_step_at_the_budget() -> None:
    m = model()
    with attention.H2O(budget=10).on(m) as cache:
        prefill(m, cache, [tokens(30)])
        for column in tokens(1, 12).T:
            state = cache.layers[1].state
            dropped = state["next"].data[..., 0]
            kept = state["score"].data.clone().scatter_(2, dropped[..., None], 0.0)
            step(m, cache, column)
            grown = scores(cache).sum(-1) - kept.sum(-1)
            assert (grown - 2).abs().max() < 1e-9


@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
def test_each_step_keeps_a_subset_and_drops_the_least(gqa: str) -> None:
    m, budget, heavy = model(), 12, 5
    with attention.H2O(budget=budget, heavy=heavy, gqa=gqa).on(m) as cache:
        prefill(m, cache, [tokens(40), tokens(4, seed=1)])
        for column in tokens(2, 25).T:
            before = [p.tolist() for p in cache.kept_positions(1)]
            step(m, cache, column)
            for r, n in enumerate(cache.seen.tolist()):
                for head, kept in enumerate(cache.kept_positions(1)[r].tolist()):
                    old = {*before[r][head], n - 1}
                    assert set(kept) <= old
                    assert len(old) - len(kept) == (n >= budget)
                    recent = set(range(n - (budget - heavy - 1), n)) & old
                    assert recent <= set(kept)
                    for lost in old - set(kept):
                        score = score_of(cache, r, head, gqa)
                        heavies = set(kept) - recent
                        assert len(heavies) == heavy
                        assert all(score[lost] <= score[h] for h in heavies)


def score_of(cache, row: int, head: int, gqa: str) -> dict[int, float]:
    state = cache.layers[1].state
    score = state["score"].data[row, head]
    score = score.amax(-1) if gqa == "max" else score
    return dict(zip(state["position"].data[row, head].tolist(), score.tolist(), strict=True))


def test_a_cut_after_a_prompt_keeps_the_heaviest() -> None:
    """Against the scores of an H2O that may keep all."""
    m, budget, prompt = model(), 12, tokens(50)
    with attention.H2O(budget=100).on(m) as everything, torch.no_grad():
        prefill(m, everything, [prompt])
        score = scores(everything)[0, :, :50]
    with attention.H2O(budget=budget).on(m) as cache:
        prefill(m, cache, [prompt])
        for head, kept in enumerate(cache.kept_positions(1)[0].tolist()):
            heaviest = score[head, :45].topk(6).indices.sort().values.tolist()
            assert kept == [*heaviest, *range(45, 50)]


def test_without_heavy_tokens_it_is_a_window() -> None:
    m, given = model(), tokens(2, 30)
    texts = [tokens(20), tokens(3, seed=1)]
    with attention.H2O(budget=9, heavy=0).on(m) as cache:
        got = follow(m, cache, texts, given)
    with attention.Sink(budget=9, sinks=0).on(m) as cache:
        want = follow(m, cache, texts, given)
    assert (got - want).abs().max() < 1e-9


def test_reductions_agree_without_groups_and_differ_with_them() -> None:
    def run(heads: tuple[int, int]) -> list[torch.Tensor]:
        m, given = model("llama", heads), tokens(1, 40)
        logits = []
        for gqa in ("sum", "mean", "max"):
            with attention.H2O(budget=10, gqa=gqa).on(m) as cache:
                logits.append(follow(m, cache, [tokens(20)], given))
        return logits

    alike, grouped = run((4, 4)), run((4, 1))
    for other in alike[1:]:
        assert (other - alike[0]).abs().max() < 1e-9
    assert (grouped[1] - grouped[0]).abs().max() < 1e-9
    assert (grouped[2] - grouped[0]).abs().max() > 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_at_least_float32(dtype: torch.dtype) -> None:
    """bf16 sums of numbers below 1 stop growing at 256."""
    m = tiny_model("llama", (4, 1), 2, dtype)
    with attention.H2O(budget=8).on(m) as cache:
        prefill(m, cache, [tokens(700)])
        assert scores(cache).dtype is torch.float32
        follow_on = [step(m, cache, column) for column in tokens(1, 10).T]
        assert torch.stack(follow_on).isfinite().all()
    with attention.H2O(budget=2000).on(m) as cache:
        prefill(m, cache, [tokens(700)])
        assert scores(cache).sum() == pytest.approx(4 * 700, rel=1e-4)


@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
@pytest.mark.parametrize("normalise", [None, "age"])
@pytest.mark.parametrize("decay", [1.0, 0.7])
@pytest.mark.parametrize("from_prefill", [True, False])
def test_options_of_the_score(
    from_prefill: bool, decay: float, normalise: str | None, gqa: str
) -> None:
    """A replay: queries are scored one by one, and ranked anew after each forward.

    The prompt is the first forward; later ones are no prompt, however many tokens they bring.
    """
    backend = attention.H2O(
        budget=9,
        heavy=4,
        gqa=gqa,
        decay=decay,
        normalise=normalise,
        score_from_prefill=from_prefill,
    )
    bare = Bare(backend)
    score = torch.zeros(4, 100, dtype=torch.float64)  # per query head and position
    held: list[list[int]] = [[], []]
    for T in (6, 1, 1, 11, *[1] * 20, 3, *[1] * 5):
        start = bare.n
        bare.feed(T)
        for j in range(2):
            for n in range(start + 1, bare.n + 1):
                held[j].append(n - 1)
                for h in (2 * j, 2 * j + 1):
                    if from_prefill or start:
                        score[h] *= decay
                        score[h, held[j]] += bare.probabilities(n - 1, held[j], h)
            both = score[2 * j : 2 * j + 2]
            rank = {"sum": both.sum(0), "mean": both.mean(0), "max": both.amax(0)}[gqa]
            if normalise:
                rank = rank / (bare.n - torch.arange(100)).clamp(min=1)
            if len(held[j]) > 8:
                old = sorted(held[j][:-4], key=lambda p: (-float(rank[p]), p))[:4]
                held[j] = sorted(old) + held[j][-4:]
        assert bare.kept() == held


def test_rolled_positions_are_those_of_the_paper_of_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tokens of `sink` kept by force, `rolled` must be its positions in the cache."""

    def first_three(self: H2OLayer, S: int, _: Step) -> torch.Tensor:
        position = self.position.data[:, :, :S].double()
        return position.masked_fill(position < 3, float("inf"))

    m, texts, given = model("qwen3"), [tokens(30), tokens(5, seed=1)], tokens(2, 25)
    with attention.Sink(budget=11, sinks=3).on(m) as cache:
        want = follow(m, cache, texts, given)
    monkeypatch.setattr(H2OLayer, "worth", first_three)
    with attention.H2O(budget=11, positions="rolled").on(m) as cache:
        assert (follow(m, cache, texts, given) - want).abs().max() < 1e-9
    with attention.H2O(budget=11).on(m) as cache:
        assert (follow(m, cache, texts, given) - want).abs().max() > 1e-3


def test_rolled_and_absolute_agree_until_the_first_eviction() -> None:
    m, given = model(), tokens(1, 20)
    logits = []
    for positions in ("rolled", "absolute"):
        with attention.H2O(budget=12, positions=positions).on(m) as cache:
            logits.append(follow(m, cache, [tokens(5)], given)[0])
    gap = (logits[0] - logits[1]).abs().amax(-1)
    assert gap[:8].max() <= 1e-12
    # The first tokens dropped were followed by others, which move.
    assert gap[8:].max() > 1e-9


def test_dense_layers_are_full_attention() -> None:
    m = model()
    with attention.H2O(budget=8, dense_layers=1).on(m) as cache:
        follow(m, cache, [tokens(20)], tokens(1, 3))
        assert [p[0].shape[1] for p in map(cache.kept_positions, range(2))] == [23, 7]


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 1},
        {"budget": 8, "heavy": 8},
        {"budget": 8, "heavy": -1},
        {"budget": 8, "gqa": "median"},
        {"budget": "8"},
        {"budget": 8, "positions": "cache"},
        {"budget": 8, "score_from_prefill": 0},
        {"budget": 8, "normalise": "length"},
        {"budget": 8, "decay": 0},
        {"budget": 8, "decay": 1.1},
        {"budget": 8, "dense_layers": -1},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.H2O(**arguments)

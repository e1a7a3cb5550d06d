"""RaaS: stamps, and which page goes."""

from __future__ import annotations

import pytest
import torch
from driving import Bare, decode, follow, model, prefill, tokens

import attention


def pages_of(positions: list[int], page: int) -> list[int]:
    """Page numbers, each once; whole pages but for the last."""
    return sorted({p // page for p in positions})


def stamps(bare: Bare, head: int, page: int) -> dict[int, int]:
    """Stamp of each held page of row 0."""
    kept = bare.kept()[head]
    stamp = bare.layer.state["stamp"].data[0, head, : len(kept)].tolist()
    return {
        n: max(s for p, s in zip(kept, stamp, strict=True) if p // page == n)
        for n in pages_of(kept, page)
    }


@pytest.mark.parametrize("alpha", [None, 0.2])
@pytest.mark.parametrize("gqa", ["sum", "mean", "max"])
@pytest.mark.parametrize(("page", "pages"), [(1, 2), (3, 4), (4, 5)])
def test_each_step_stamps_and_drops_as_promised(
    page: int, pages: int, gqa: str, alpha: float | None
) -> None:
    """A replay with a dictionary of stamps per head."""
    budget = page * pages
    backend = attention.RaaS(budget=budget, page=page, alpha=alpha, gqa=gqa, keep_prompt=False)
    bare = Bare(backend)
    bare.feed(2 * page + 1)
    held = [pages_of(kept, page) for kept in bare.kept()]
    mine = [dict.fromkeys(h, bare.n) for h in held]
    gone: list[set[int]] = [set(), set()]
    for _ in range(12 * page):
        read = [[p for p in range(bare.n + 1) if p // page in {*m, bare.n // page}] for m in mine]
        bare.feed()
        assert bare.read() == read
        for j, stamp in enumerate(mine):
            stamp.setdefault((bare.n - 1) // page, 0)
            every = torch.stack(
                [bare.probabilities(bare.n - 1, read[j], h) for h in (2 * j, 2 * j + 1)]
            )
            number = torch.tensor([p // page for p in read[j]])
            order = sorted(stamp)
            best = torch.stack([every[:, number == n].amax(1) for n in order], dim=1)
            score = {"sum": best.sum(0), "mean": best.mean(0), "max": best.amax(0)}[gqa]
            if alpha is None:
                fresh = score.argsort(descending=True, stable=True)[: max(len(order) // 2, 1)]
            else:
                fresh = (score > alpha).nonzero().flatten()
            for i in {*fresh.tolist(), len(order) - 1}:
                stamp[order[i]] = bare.n
            if bare.n % page == 0 and len(stamp) == pages:
                lost = min(stamp, key=lambda n: (stamp[n], n))
                del stamp[lost]
                gone[j].add(lost)
            assert stamps(bare, j, page) == stamp
            assert len(bare.kept()[j]) <= budget - 1
            assert not gone[j] & set(pages_of(bare.kept()[j], page))
    assert all(gone)


def test_stamps_never_fall_and_the_page_being_filled_lives() -> None:
    bare, before = Bare(attention.RaaS(budget=20, page=5)), [{}, {}]
    bare.feed(7)
    for _ in range(60):
        bare.feed()
        for j in range(2):
            now = stamps(bare, j, 5)
            assert all(now[n] >= before[j][n] for n in now if n in before[j])
            assert bare.n % 5 == 0 or bare.n // 5 in now
            assert {0, 1} <= now.keys()  # the page where prompt and answer meet, too
            before[j] = now


@pytest.mark.parametrize("prompt", [1, 5, 12, 15])
def test_pages_of_the_prompt_live_and_count(prompt: int) -> None:
    m = model()
    with attention.RaaS(budget=20, page=5).on(m) as cache:
        prefill(m, cache, [tokens(prompt), tokens(1, seed=1)])
        for column in tokens(2, 50).T:
            decode(m, cache, column[:, None])
            for layer in range(2):
                for head in cache.kept_positions(layer)[0].tolist():
                    assert set(range(prompt)) <= set(head)
                    assert len(head) < 20
            assert cache.row_stats().read_max.max() <= 20
        assert cache.row_stats().kept_max.tolist() == [15 + (prompt + 50) % 5, 15 + 51 % 5]


@pytest.mark.parametrize("chunk", [None, 7])
def test_a_prompt_that_leaves_no_page_is_refused(chunk: int | None) -> None:
    m = model()
    with attention.RaaS(budget=20, page=5).on(m) as cache:
        with pytest.raises(attention.InvalidValue, match="prompt"):
            prefill(m, cache.new(prompts=[16, 2]), [tokens(16), tokens(2, seed=1)], chunk)
        prefill(m, cache.new(prompts=[15, 2]), [tokens(15), tokens(2, seed=1)], chunk)
    with attention.RaaS(budget=20, page=5, keep_prompt=False).on(m) as cache:
        cache = cache.new(prompts=[48])
        prefill(m, cache, [tokens(48)], chunk)
        # All stamps are equal, or grow with the page.
        assert cache.kept_positions(1)[0].tolist() == [list(range(30, 48))] * 2


@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_rows_with_protected_prompts_are_rows_alone(chunk: int | None) -> None:
    """Chunks of one column: a row's first token comes in a decode step of the other rows."""
    m, lengths, given = model(), (3, 14, 10), tokens(3, 30)
    texts = [tokens(n, seed=i) for i, n in enumerate(lengths)]
    with attention.RaaS(budget=20, page=5).on(m) as cache:
        got = follow(m, cache, texts, given, chunk)
        for r, text in enumerate(texts):
            alone = cache.new()
            first = (14 - len(text)) % (chunk or 1)
            if first:
                with torch.no_grad():
                    m(input_ids=text[None, : chunk - first], past_key_values=alone)
                    rest = text[chunk - first :]
                    for start in range(0, len(rest), chunk):
                        m(input_ids=rest[None, start : start + chunk], past_key_values=alone)
                want = decode(m, alone, given[r : r + 1])[0]
            else:
                want = follow(m, alone, [text], given[r : r + 1], chunk)[0, 1:]
            assert (got[r, 1:] - want).abs().max() < 1e-9
            for layer in range(2):
                assert torch.equal(alone.kept_positions(layer)[0], cache.kept_positions(layer)[r])
        fresh = cache.new()
        prefill(m, fresh, [tokens(15, seed=9)])
        cache.replace_rows([1], fresh)
        more = tokens(3, 20, seed=4)
        assert (decode(m, cache, more)[1] - decode(m, fresh, more[1:2])[0]).abs().max() < 1e-9


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 16},
        {"budget": 40},
        {"budget": 32, "page": 0},
        {"budget": 32, "alpha": 1.5},
        {"budget": 32, "alpha": "0.1"},
        {"budget": 32, "keep_prompt": 1},
        {"budget": 32, "gqa": "query_head"},
    ],
)
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.RaaS(**arguments)

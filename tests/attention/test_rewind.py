"""A row whose newest tokens are taken back is a row that never produced them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from examples import FIRST
from states import LENGTHS, STATS, half_a_forward, prompts, record, same_bits
from torch import Tensor
from zoo import WINDOW, animal

import attention
from attention.testing.driving import decode, follow, prefill, step
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

# Row 1, in the middle, is taken back: the longest row decides how wide products are.
ROW = 1
# The prompts' ends, one token later, both sides of a border of pages of 3 and of 4 (rows have 15 to
# 17 and 27 to 29 tokens there), and far beyond all budgets.
POINTS = (0, 1, 2, 26)
TAIL, NEXT = 23, 20
REWINDABLE = ("noise", "full", "uniform", "oracle", "quest")


def steps(m: Any, cache: Any, given: Tensor) -> tuple[Tensor, list[list[list[float]]]]:
    """Logits and `row_stats` of every step."""
    logits, stats = [], []
    for column in given.T:
        logits.append(step(m, cache, column))
        found = cache.row_stats()
        stats.append([getattr(found, name).tolist() for name in STATS])
    return torch.stack(logits, dim=1), stats


class Untaken:
    """The run that never made a tail: logits and statistics of each step, states at POINTS."""

    def __init__(self, m: Any, cache: Any, given: Tensor) -> None:
        prefill(m, cache, prompts())
        self.states, self.kept = {}, {}
        logits, self.stats = [], []
        for n in range(given.shape[1]):
            if n in POINTS:
                self.states[n] = [record(cache, r) for r in range(len(LENGTHS))]
                self.kept[n] = [cache.kept_positions(i) for i in range(len(cache.layers))]
            one, stats = steps(m, cache, given[:, n : n + 1])
            logits.append(one)
            self.stats += stats
        self.logits = torch.cat(logits, dim=1)


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_a_batch_taken_back_is_the_run_without_the_tail(backend: attention.Backend) -> None:
    """By snapshots of single rows, and by rewinding where that is exact: bit for bit."""
    m, given, tail = tiny_model(), tokens(3, POINTS[-1] + NEXT, seed=9), tokens(3, TAIL, seed=10)
    with backend.on(m) as cache:
        run = Untaken(m, cache.new(), given)
        assert cache.rewindable == (backend.name in REWINDABLE)
        prefill(m, cache, prompts())
        snapshots = {}
        for n in range(POINTS[-1] + 1):
            if n in POINTS:
                snapshots[n] = [cache.clone([r]) for r in range(len(LENGTHS))]
            step(m, cache, given[:, n])
        decode(m, cache, tail)
        rewound = cache.clone()

        for n in reversed(POINTS):
            for r, snapshot in enumerate(snapshots[n]):
                cache.replace_rows([r], snapshot)
            taken_back = [(cache, None)]
            if cache.rewindable:
                for r, length in enumerate(LENGTHS):
                    rewound.rewind(r, length + n)
                taken_back.append((rewound, n))
            for one, only in taken_back:
                assert one.seen.tolist() == [length + n for length in LENGTHS]
                for r, length in enumerate(LENGTHS):
                    same_bits(one, r, run.states[n][r], only and length + n)
                for layer, want in enumerate(run.kept[n]):
                    pairs = zip(one.kept_positions(layer), want, strict=True)
                    assert all(torch.equal(a, b) for a, b in pairs)
                if n:
                    at = dict(zip(STATS, run.stats[n - 1], strict=True))
                    assert one.row_stats().kept_max.tolist() == at["kept_max"]
                    assert one.row_stats().bytes.tolist() == at["bytes"]
                # The tail is long here, so a few steps show what is wrong; at the last all do.
                count = NEXT if n == POINTS[-1] else 6
                logits, stats = steps(m, one, given[:, n : n + count])
                assert torch.equal(logits, run.logits[:, n : n + count])
                assert stats == run.stats[n : n + count]


# Snapshots


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_rows_are_cloned_without_copying_the_others(
    backend: attention.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = tiny_model()
    with backend.on(m) as cache:
        follow(m, cache, prompts(), tokens(3, 24))
        state = {id(s.data) for layer in cache.layers for s in layer.state.values()}
        plain = Tensor.__deepcopy__

        def watched(x: Tensor, memo: dict) -> Tensor:
            assert id(x) not in state, "keys or values of all rows"
            return plain(x, memo)

        monkeypatch.setattr(Tensor, "__deepcopy__", watched)
        cache.clone([1])


def test_clones_of_no_rows_and_of_rows_that_are_not_there() -> None:
    m = tiny_model()
    with attention.Quest(budget=16, page=4, dense_layers=0).on(m) as cache:
        assert cache.clone([]).seen.tolist() == []
        with pytest.raises(attention.InvalidValue, match=r"rows = \[0\]: expected no row"):
            cache.clone([0])
        follow(m, cache, prompts(), tokens(3, 9))
        assert cache.clone([]).seen.tolist() == []
        for rows in ([3], [-1], [0, 7]):
            with pytest.raises(attention.InvalidValue, match="rows from 0 to 2"):
                cache.clone(rows)
        with half_a_forward(m), pytest.raises(ZeroDivisionError):
            step(m, cache, tokens(3))
        for call in (cache.clone, lambda: cache.rewind(0, 3)):
            with pytest.raises(RuntimeError, match="half way"):
                call()


# Rewinding


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_whether_a_row_can_be_rewound_is_known_beforehand(backend: attention.Backend) -> None:
    able = backend.name in REWINDABLE
    assert backend.rewindable == able
    m = tiny_model()
    with backend.on(m) as cache:
        assert cache.rewindable == able
        follow(m, cache, prompts(), tokens(3, 3))
        assert cache.rewindable == able
        if able:
            return
        before = [record(cache, r) for r in range(3)]
        cache.rewind(ROW, LENGTHS[ROW] + 3)  # nothing to forget
        with pytest.raises(attention.InvalidValue, match=f"rewind = '{backend.name}'.*bring back"):
            cache.rewind(ROW, LENGTHS[ROW])
        for r in range(3):
            same_bits(cache, r, before[r])
        assert cache.decoded


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_a_model_that_slides_is_not_rewindable(backend: attention.Backend) -> None:
    for family in ("gemma3", "qwen2_sliding"):
        if backend.dense_layers and family == "qwen2_sliding":
            continue
        with backend.on(animal(family)) as cache:
            assert not cache.rewindable


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "qwen2_sliding"])
def test_rows_still_inside_a_window_are_rewound_one_by_one(family: str) -> None:
    m, then = animal(family), tokens(2, NEXT, seed=4)
    texts = [tokens(WINDOW + 4), tokens(2, seed=1)]
    with attention.Quest(budget=6, page=3, dense_layers=0).on(m) as cache:
        never = cache.new()
        follow(m, never, texts, tokens(2, WINDOW - 2, seed=5)[:, :1])
        follow(m, cache, texts, tokens(2, WINDOW - 2, seed=5))
        assert not cache.is_croppable
        held = cache.clone()
        with pytest.raises(attention.InvalidValue, match=r"rewind = 12.*sliding"):
            cache.rewind(0, WINDOW + 5)
        cache.rewind(1, 3)
        assert cache.seen.tolist() == [2 * WINDOW + 2, 3]
        held.replace_rows([1], never, [1])
        assert torch.equal(decode(m, cache, then), decode(m, held, then))
        with pytest.raises(attention.InvalidValue, match="sliding"):
            cache.rewind(1, 3)


@pytest.mark.parametrize("seen", [0, 1, 15])
@pytest.mark.parametrize("backend", [b for b in FIRST if b.name in REWINDABLE], ids=str)
def test_a_row_is_rewound_into_its_prompt_and_to_nothing(
    backend: attention.Backend, seen: int
) -> None:
    """Another text where the prompt stood."""
    m, other = tiny_model(), tokens(1, 14, seed=6)
    with backend.on(m) as cache:
        follow(m, cache, prompts(), tokens(3, 8, seed=9))
        cache.rewind(0, seen)
        given = tokens(3, 14, seed=5)
        given[0] = other
        got = decode(m, cache, given)[0]
        whole = torch.cat((prompts()[0][:seen], other[0]))
        start = max(seen, 1)
        want = follow(m, cache.new(), [whole[:start]], whole[None, start:])[0]
        assert (got - want[-14:]).abs().max() < 1e-9
        assert cache.kept_positions(0)[0].shape[-1] == seen + 14


def test_columns_follow_the_longest_row() -> None:
    """What `get_seq_length` says is what a mask for the next call must have."""
    m = tiny_model()
    with attention.Full().on(m) as cache:
        follow(m, cache, prompts(), tokens(3, 5))
        cache.rewind(2, 4)
        assert cache.get_seq_length() == 32
        cache.rewind(0, 28)
        assert cache.get_seq_length() == 28
        cache.rewind(0, 6)
        assert cache.get_seq_length() == 20 == cache.seen.max()
        cache.crop(-2)
        assert cache.get_seq_length() == 18
        one = cache.clone([1])
        ids = torch.cat((prompts()[1], tokens(3, 5)[1, :3], tokens(4, seed=8)))[None]
        with torch.no_grad():
            call = {"max_new_tokens": 5, "do_sample": False}
            got = m.generate(ids, past_key_values=one, **call)
            assert torch.equal(got, m.generate(ids, past_key_values=cache.new(), **call))


@pytest.mark.parametrize(
    ("row", "seen", "says"),
    [
        (3, 1, "row = .*rows from 0 to 2"),
        (-1, 1, "row = .*rows from 0 to 2"),
        (1, -1, "seen = -1: expected from 0 to the 18 tokens of row 1"),
        (1, 19, "seen = 19: expected from 0 to the 18 tokens of row 1"),
    ],
)
def test_what_cannot_be_rewound_is_refused(row: int, seen: int, says: str) -> None:
    m = tiny_model()
    with attention.Full().on(m) as cache:
        with pytest.raises(attention.InvalidValue, match="no row"):
            cache.rewind(0, 0)
        follow(m, cache, prompts(), tokens(3, 3))
        kept = copy.deepcopy(cache)
        with pytest.raises(attention.InvalidValue, match=says):
            cache.rewind(row, seen)
        given = tokens(3, 3, seed=2)
        assert torch.equal(decode(m, cache, given), decode(m, kept, given))

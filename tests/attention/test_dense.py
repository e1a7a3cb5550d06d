"""Rows that go on under full attention, and rows added to a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import FIRST, KEEP_ALL
from states import LENGTHS, STATS, prompts, record, same_bits
from torch import Tensor
from transformers import DynamicCache

import attention
from attention.testing.driving import decode, follow, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

QUEST = attention.Quest(budget=16, page=4, dense_layers=0)
BEFORE, NEXT = 30, 12


class Recorder:
    """What the model gave a cache: roped keys and values, (Hkv, n, D) by layer and row.

    transformers hands both to `update`, before any of our code sees them.
    """

    def __init__(self, cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tensors: dict[int, list[tuple[Tensor, Tensor]]] = {}
        plain = cache.update

        def update(k: Tensor, v: Tensor, layer: int, *more: Any, **kwargs: Any) -> Any:
            self.tensors.setdefault(layer, []).append((k.clone(), v.clone()))
            return plain(k, v, layer, *more, **kwargs)

        monkeypatch.setattr(cache, "update", update)

    def row(self, layer: int, row: int, seen: int) -> tuple[Tensor, Tensor]:
        """The real tokens of a left-padded row."""
        k, v = (torch.cat([x[i][row] for x in self.tensors[layer]], dim=1) for i in range(2))
        return k[:, k.shape[1] - seen :], v[:, v.shape[1] - seen :]


@torch.no_grad()
def transformers_logits(m: Any, recorder: Recorder, row: int, seen: int, then: Tensor) -> Tensor:
    """transformers' own attention after the same keys and values, (n, vocabulary)."""
    cache = DynamicCache(config=m.config)
    for layer in range(m.config.num_hidden_layers):
        k, v = recorder.row(layer, row, seen)
        cache.update(k[None], v[None], layer)
    logits = []
    for i, token in enumerate(then):
        positions = torch.tensor([[seen + i]])
        out = m(input_ids=token.view(1, 1), position_ids=positions, past_key_values=cache)
        logits.append(out.logits[0, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("backend", KEEP_ALL, ids=str)
def test_a_row_goes_on_as_transformers_would_with_its_keys_and_values(
    backend: attention.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 2, 0 and, two tokens later, row 1 go on densely, in one batch."""
    answers, then = tokens(3, BEFORE, seed=9), tokens(3, NEXT, seed=10)
    m = tiny_model()
    with backend.on(m) as cache:
        recorder = Recorder(cache, monkeypatch)
        follow(m, cache, prompts(), answers)
        state = [record(cache, r) for r in range(3)]
        going = cache.go_dense([2, 0])
        assert going.backend == attention.Full()
        assert going.seen.tolist() == [LENGTHS[2] + BEFORE, LENGTHS[0] + BEFORE]
        assert not going.decoded
        first = decode(m, going, then[[2, 0], :2])
        for r in range(3):
            same_bits(cache, r, state[r])
        # The sparse cache goes on in between.
        decode(m, cache.clone(), then)
        state_of_dense = [record(going, r) for r in range(2)]
        going.append_rows(cache.go_dense([1]))
        for r in range(2):
            same_bits(going, r, state_of_dense[r])
        assert going.seen.tolist() == [n + BEFORE for n in (LENGTHS[2] + 2, LENGTHS[0] + 2, 15)]
        rest = torch.stack((then[2, 2:], then[0, 2:], then[1, :-2]))
        second = decode(m, going, rest)
        assert going.row_stats().read_max.tolist() == going.seen.tolist()
    got = {
        2: torch.cat((first[0], second[0])),
        0: torch.cat((first[1], second[1])),
        1: second[2],
    }
    for r, logits in got.items():
        want = transformers_logits(m, recorder, r, LENGTHS[r] + BEFORE, then[r, : len(logits)])
        assert (logits - want).abs().max() < 1e-9


# Rows added


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_added_rows_go_on_as_alone_and_the_others_do_not_notice(
    backend: attention.Backend,
) -> None:
    m, answers, then = tiny_model(), tokens(5, 21, seed=9), tokens(5, 12, seed=8)
    more = [tokens(33, seed=20), tokens(5, seed=21)]
    with backend.on(m) as cache:
        follow(m, cache, prompts(), answers[:3])
        fresh = cache.new()
        follow(m, fresh, more, answers[3:, :7])
        untouched = cache.clone()
        before = [record(cache, r) for r in range(3)]
        added = [record(fresh, r) for r in range(2)]
        read = [cache.read_positions(i) for i in range(2)]
        stats = cache.row_stats()
        cache.append_rows(fresh)
        assert cache.seen.tolist() == [n + 21 for n in LENGTHS] + [40, 12]
        assert fresh.seen.tolist() == [40, 12]
        for r in range(3):
            same_bits(cache, r, before[r])
            assert all(torch.equal(cache.read_positions(i)[r], read[i][r]) for i in range(2))
            for name in STATS:
                assert getattr(cache.row_stats(), name)[r] == getattr(stats, name)[r], name
        assert cache.row_stats().read_max[3:].tolist() == [0, 0]
        for r in range(2):
            same_bits(cache, 3 + r, added[r])
        got = decode(m, cache, then)
        for r, prompt in enumerate(more, start=3):
            alone = follow(m, cache.new(), [prompt], torch.cat((answers[r, :7], then[r]))[None])
            assert (got[r] - alone[0, 8:]).abs().max() < 1e-9
        onward = decode(m, untouched, then[:3])
        assert (got[:3] - onward).abs().max() < 1e-9
        for r in range(2):
            same_bits(fresh, r, added[r])


def test_rows_of_another_block_or_method_are_not_added() -> None:
    m = tiny_model()
    with QUEST.on(m) as cache:
        follow(m, cache, prompts(), tokens(3, 3))
        going = cache.go_dense([0])
        for target, other, says in (
            (cache, going, "cache of full'.*cache of quest from the same"),
            (going, cache, "cache of quest'.*cache of full from the same"),
        ):
            seen = target.seen.tolist()
            for call in (
                target.append_rows,
                lambda x, target=target: target.replace_rows([0], x, [0]),
            ):
                with pytest.raises(attention.InvalidValue, match=says):
                    call(other)
            assert target.seen.tolist() == seen
        with QUEST.on(m) as other:
            prefill(m, other, prompts())
            with pytest.raises(attention.InvalidValue, match="same `with` block"):
                cache.append_rows(other)

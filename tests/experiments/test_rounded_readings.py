"""A text read again with other last bits: what rounding decides, and what it does not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

import check_runtimes
import pytest
import rounded_readings
import torch
from choice_ties import backend_of
from compare_stores import Parting, scores
from rounded_readings import READINGS, RoundedReadings
from rounded_readings import rounded_readings as read_again

import lil
from attention.contract import top
from attention.engines import engine
from attention.layers import paged
from attention.testing.driving import prefill, step
from experiments.grid import models
from experiments.sweep import sweep

QUEST = {"name": "quest", "page": 4, "dense_layers": 0, "budget": 20}
PROMPT = tuple(range(5, 25))


@pytest.fixture(scope="module")
def loaded() -> Any:
    return models.load(models.find("reasoner"), "float32", "cpu")


@pytest.fixture(scope="module")
def model(loaded: Any) -> Any:
    return loaded.model


def parting(common: tuple[int, ...], tokens: tuple[int, int], reused: int = 0) -> Parting:
    return Parting("", {"backend": QUEST}, PROMPT, common, reused, tokens)


@pytest.fixture(scope="module")
def greedy(loaded: Any) -> tuple[int, ...]:
    """What `lil.decode` writes, under the same method."""
    backend = backend_of(parting((), (0, 0)))
    prompts, stop = [list(PROMPT)], {"max_new_tokens": 40}
    (one,) = lil.decode(loaded.model, loaded.tokenizer, prompts, backend=backend, **stop)
    found: tuple[int, ...] = one.new_ids
    return found


@pytest.mark.parametrize("reused", [0, 7])
def test_last_bits_decide_nothing_where_one_token_is_far_likelier(
    model: Any, greedy: tuple[int, ...], reused: int
) -> None:
    *common, mine = greedy[:30]
    some = parting(tuple(common), (mine, mine + 1), reused)
    found = read_again(model, some)
    assert found == RoundedReadings(READINGS, READINGS, 0, 0)
    assert not found.both
    # What is changed in the model is changed for these readings alone.
    (one,), (two,) = (scores(model, backend_of(some), [some], "torch") for _ in "ab")
    assert torch.equal(one, two)


def test_another_token_in_the_text_is_counted(model: Any, greedy: tuple[int, ...]) -> None:
    *common, mine = greedy[:30]
    common[20] = (common[20] + 1) % 64
    found = read_again(model, parting(tuple(common), (mine, mine)))
    assert found.changed >= 1
    known = read_again(model, parting(tuple(common), (mine, mine), reused=21))
    assert known.changed == found.changed - 1


def test_where_last_bits_decide_either_token_may_come(
    model: Any, greedy: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading has its own; the larger the changes, the more tokens they decide."""
    monkeypatch.setattr(rounded_readings, "LAST_BIT", 0.3)
    common = greedy[:30]
    likeliest = rounded_readings._likeliest(model, parting(common, (0, 0)), 0)
    assert likeliest.shape == (31, READINGS)
    some = next(row for row in likeliest.flip(0) if len(row.unique()) > 1)
    at = len(likeliest) - 1 - [torch.equal(row, some) for row in likeliest.flip(0)].index(True)
    one, two = some.unique()[:2].tolist()
    found = read_again(model, parting(common[:at], (one, two)))
    assert found.both
    assert (found.mine, found.theirs) == (int((some == one).sum()), int((some == two).sum()))
    assert found.changed > 0
    absent = min(set(range(64)) - set(some.tolist()))
    for tokens in ((one, absent), (absent, one)):
        assert not read_again(model, parting(common[:at], tokens)).both


def test_another_order_of_a_sum_changes_most_outputs_by_more(model: Any) -> None:
    """In every linear layer."""
    shares: list[float] = []

    def watched(layer: torch.nn.Linear, given: tuple[torch.Tensor], out: torch.Tensor) -> None:
        assert layer.bias is None
        order = torch.randperm(given[0].shape[-1], generator=torch.Generator().manual_seed(1))
        other = given[0][..., order] @ layer.weight[:, order].T
        larger = (other - out).abs() > rounded_readings.LAST_BIT * out.abs()
        shares.append(float(larger.float().mean()))

    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_hook(watched) for layer in layers]
    with torch.inference_mode():
        model(torch.tensor([PROMPT]))
    for hook in hooks:
        hook.remove()
    assert len(shares) == len(layers) > 30
    assert min(shares) > 0.5


def test_a_model_without_layers_to_change_is_not_taken_as_certain() -> None:
    with (
        pytest.raises(RuntimeError, match="no linear layer"),
        rounded_readings._last_bits(torch.nn.ReLU(), 0),
    ):
        pass


def worths_of_16_bits(worth: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `top` would be, had somebody compared blocks too coarsely."""
    coarse = worth.bfloat16().to(worth.dtype)
    _, index = top(torch.where(worth.isfinite(), coarse, worth), k)
    return worth.gather(-1, index), index


def texts(model: Any, method: dict[str, Any], prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What the model writes, as far as it is looked at."""
    some = Parting("", {"backend": method}, (), (), 0, (0, 0))
    with torch.inference_mode(), backend_of(some).on(model, "torch") as cache:
        own = cache.new(prompts=[len(one) for one in prompts])
        newest = prefill(model, own, [torch.tensor(one) for one in prompts])[:, -1].argmax(-1)
        found = [newest]
        for _ in range(420):
            newest = step(model, own, newest).argmax(-1)
            found.append(newest)
    return [tuple(one) for one in torch.stack(found, 1).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"name": "quest", "page": 32, "budget": 128},
        {"name": "infllm", "block": 32, "n_init": 32, "topk": 1, "repr_topk": 32,
         "far_position": "absolute", "budget": 128},
    ],
)  # fmt: skip
def test_wrong_choices_are_not_taken_for_rounding(
    model: Any, method: dict[str, Any], tmp_path: Path
) -> None:
    given = argparse.Namespace(
        problems=8, offset=1000, methods="full", budgets="128", batch_size=8, max_new_tokens=2048
    )
    problems = sweep.prepare(check_runtimes.config_of(given), tmp_path).problems
    prompts = [list(ids) for _, ids in problems.values()]
    right = texts(model, method, prompts)
    with (
        mock.patch.object(engine, "top", worths_of_16_bits),
        mock.patch.object(paged, "top", worths_of_16_bits),
    ):
        wrong = texts(model, method, prompts)
    parted = 0
    for prompt, one, two in zip(prompts, right, wrong, strict=True):
        if one == two:
            continue
        at = next(at for at, pair in enumerate(zip(one, two, strict=True)) if len({*pair}) > 1)
        some = Parting("", {"backend": method}, tuple(prompt), one[:at], 0, (one[at], two[at]))
        found = read_again(model, some)
        assert not found.both
        assert found.mine == READINGS
        parted += 1
        if parted == 3:
            break
    assert parted == 3

"""generate() with every backend in every family: greedy, sampling and beams."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import FAMILIES, WITHOUT_ROOM, animal, sliding_layers

import attention
from attention import methods
from attention.patching.cache import AttentionCache
from attention.testing.driving import left_padded
from attention.testing.driving import text as tokens

pytestmark = pytest.mark.filterwarnings("ignore:every layer of this mistral")
NEW = 12
PROMPTS = (tokens(6), tokens(3, seed=1))
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.5},
    "beams": {"do_sample": False, "num_beams": 3},
}
# Small enough for all to be sparse before the last token, and for raas's prompt to fit.
WANTED = {"budget": 12, "page": 3, "dense_layers": 0}
SPLIT = {"budget": 16, "n_init": 2, "n_local": 8, "block": 2, "topk": 2}


def backend(name: str) -> attention.Backend:
    fields = {f.name for f in dataclasses.fields(methods.find(name)) if f.init}
    wanted = SPLIT if name == "infllm" else WANTED
    return attention.get(name, **{k: v for k, v in wanted.items() if k in fields})


NAMES = attention.names()
CELLS = [(name, family, mode) for name in NAMES for family in FAMILIES for mode in MODES]


def quick(name: str, family: str, mode: str) -> bool:
    """A sample in which every backend meets every mode and some family, and the other way round."""
    place = NAMES.index(name) + FAMILIES.index(family) + 3 * list(MODES).index(mode)
    return name == "full" or place % 7 == 0


QUICK = [cell for cell in CELLS if quick(*cell)]


@lru_cache(maxsize=64)
def own(family: str, mode: str) -> Tensor:
    """What transformers generates by itself."""
    return generate(family, mode)


def generate(family: str, mode: str, **more: Any) -> Tensor:
    ids, mask = left_padded(PROMPTS)
    torch.manual_seed(4)
    call = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, **MODES[mode]}
    out: Tensor = animal(family).generate(**call, **more)
    assert out.shape == (2, ids.shape[1] + NEW)
    return out[:, ids.shape[1] :]


@contextmanager
def counted(cache: AttentionCache) -> Iterator[list[int]]:
    """The layers whose attention went through the cache, in order."""
    ran: list[int] = []
    attend = cache.attend

    def noted(index: int, *more: Any) -> Tensor:
        ran.append(index)
        return attend(index, *more)

    cache.attend = noted  # type: ignore[method-assign]
    yield ran
    del cache.attend


def check(name: str, family: str, mode: str) -> None:
    method, m = backend(name), animal(family)
    before, want = m.config._attn_implementation, own(family, mode)
    with method.on(m) as cache, counted(cache) as ran:
        got = generate(family, mode, past_key_values=cache)
        # Each of the model's layers, once in each forward: nothing ran elsewhere or from anew.
        assert ran == [*range(m.config.num_hidden_layers)] * NEW
        seen = [len(p) + NEW - 1 for p in PROMPTS for _ in range(MODES[mode].get("num_beams", 1))]
        assert cache.seen.tolist() == seen
        stats = cache.stats(per_layer=True)
    assert m.config._attn_implementation == before
    assert stats.sliding == tuple(sliding_layers(family))
    if name == "full":
        assert torch.equal(got, want)
    elif family == WITHOUT_ROOM:
        assert stats.read_max is None
        assert torch.equal(got, want)
    elif name not in ("uniform", "noise"):
        assert stats.read_max is not None
        assert stats.read_max <= method.budget < max(seen)
    if mode != "beams" and name != "noise":  # whose prompts have its noise, too
        # The token after n seen ones is that of full attention up to n = exact_until.
        for r, prompt in enumerate(PROMPTS):
            exact = max(min(method.exact_until, math.inf) - len(prompt) + 1, 1)
            exact = int(min(exact, NEW))
            assert torch.equal(got[r, :exact], want[r, :exact])


@pytest.mark.parametrize(("name", "family", "mode"), QUICK)
def test_generate(name: str, family: str, mode: str) -> None:
    check(name, family, mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_generate_in_every_cell(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell for cell in CELLS if cell[0] == name]
    for cell in cells:
        check(*cell)
    with capsys.disabled():
        print(f"\n{name}: {len(cells)} of {len(CELLS)} cells", end=" ")


def test_every_backend_and_every_family_is_sampled_in_every_mode() -> None:
    for which in (0, 1):
        assert {(c[which], c[2]) for c in QUICK} == {(c[which], c[2]) for c in CELLS}

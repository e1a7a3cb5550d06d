"""InfLLM: parts, representatives and distances, as the outputs show them.

That every token is in exactly one part is held in `test_infllm.py` one folder up, too, for any
split; here by what is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import attention
from properties.backends import PLAIN, infllm
from properties.cases import SUMS, Case, cases, columns, shapes, summing
from properties.feeding import Text, rope, session
from properties.holding import holds


def parts_of(seen: int, p: Any) -> tuple[list[int], list[int], list[list[int]]]:
    """First tokens, window, and blocks with the newest last, in the words of the method."""
    left = list(range(max(seen - p.n_local, 0)))
    rest = left[p.n_init :]
    blocks = [rest[i : i + p.block] for i in range(0, len(rest), p.block)]
    return left[: p.n_init], list(range(len(left), seen)), blocks


def steps(case: Case, texts: list[Text]) -> list[tuple[list[torch.Tensor], list[Any], list[int]]]:
    """Outputs, sets of the first head and lengths of the rows, per decode step."""
    found = []
    with session(case.backend, texts) as s:
        for number, counts in enumerate(case.whole):
            outs = s.feed(counts)
            if number >= len(case.forwards):
                found.append((outs, [row[0] for row in s.read()], list(s.at)))
    return found


@holds(6, cases(infllm(**PLAIN), reveal=True, rows=3, prompt=40, steps=24))
def test_parts_and_probabilities_are_whole(case: Case) -> None:
    """Every past token is in exactly one part, and local + far probability = 1.

    First tokens, window and newest block are read, and of the other blocks topk, whole; near and
    far tokens share one softmax in every head.
    """
    p = case.backend.parts
    for outs, read, lengths in steps(case, case.texts()):
        for out, tokens, n in zip(outs, read, lengths, strict=True):
            init, window, blocks = parts_of(n, p)
            newest, others = blocks[-1:], blocks[:-1]
            assert sorted([*init, *window, *chain(*blocks)]) == list(range(n))
            always = {*init, *window, *chain(*newest)}
            chosen = [b for b in others if b[0] in tokens]
            assert len(chosen) == min(p.topk, len(others))
            assert set(tokens) == always | set(chain(*chosen))
            local, far = out[0, 0, :, window].sum(-1), out[0, 0, :, : window[0]].sum(-1)
            assert (local + far - 1).abs().max() <= 1e-12
            assert bool((far > 0).all()) == bool(init or blocks)


@st.composite
def swapped(draw: Callable[..., Any]) -> tuple[Case, int]:
    """A case whose prompt has far tokens, and a seed for which of them are swapped."""
    backend = draw(infllm(repr_topk="block", **PLAIN))
    p = backend.parts
    far = p.n_init + p.block * draw(st.integers(1, 4))
    lengths = [p.n_local + far + draw(st.integers(0, 9)) for _ in range(draw(st.integers(1, 3)))]
    forwards = columns(lengths, (max(lengths),))
    case = Case(backend, draw(shapes()), forwards, draw(st.integers(1, 15)), seed=far)
    return case, draw(st.integers(0, 99))


@holds(6, swapped())
def test_swapping_two_far_tokens_changes_nothing(how: tuple[Case, int]) -> None:
    """Swapping two far tokens: of a full block, or any two where all blocks are read.

    The representative is the mean of the block, so that only distances could tell them apart.
    """
    case, seed = how
    texts, changed, p = case.texts(), [], case.backend.parts
    random = torch.Generator().manual_seed(seed)
    for text, prompt in zip(texts, case.prompts, strict=True):
        init, _, blocks = parts_of(prompt, p)
        everything = [*init, *chain(*blocks)]
        # No block is ever left out.
        free = len(parts_of(len(text), p)[2]) - 1 <= p.topk
        part = [everything] if free else [b for b in blocks if len(b) == p.block]
        where = part[int(torch.randint(len(part), (), generator=random))]
        a, b = (where[int(torch.randint(len(where), (), generator=random))] for _ in range(2))
        order = list(range(len(text)))
        order[a], order[b] = b, a
        changed.append(replace(text, k=text.k[:, :, order], v=text.v[:, :, order]))
    for (one, read, _), (other, again, _) in zip(
        steps(case, texts), steps(case, changed), strict=True
    ):
        assert read == again
        for x, y in zip(one, other, strict=True):
            assert (x - y).abs().max() <= 1e-9


@holds(6, cases(infllm(repr_topk="block", **PLAIN), rows=3, prompt=50, steps=25))
def test_representatives_of_whole_blocks_are_plain_means(case: Case) -> None:
    """repr_topk = block: the blocks read are those whose mean unroped key fits the query best.

    The query stands at n_local - 1 and is summed over all heads.
    """
    texts, p, s = case.texts(), case.backend.parts, case.shape
    for _, read, lengths in steps(case, texts):
        for text, tokens, n in zip(texts, read, lengths, strict=True):
            others = parts_of(n, p)[2][:-1]
            if len(others) <= p.topk:
                continue
            q = rope(s, text.q[0, :, n - 1 : n], torch.tensor([p.n_local - 1]))[:, 0]
            means = torch.stack([text.k[0][:, b].mean(1) for b in others], dim=1)
            fit = (q.unflatten(0, (s.Hkv, s.G)).sum(1)[:, None] * means).sum((0, 2))
            best = fit.topk(p.topk).indices.tolist()
            assert {i for i, b in enumerate(others) if b[0] in tokens} == set(best)


@holds(6, cases(infllm(**PLAIN), reveal=True, rows=3, prompt=40, steps=24))
def test_no_distance_exceeds_the_window(case: Case) -> None:
    """Near tokens are seen where they are, all others at n_local - 1: no distance is larger."""
    texts, p = case.texts(), case.backend.parts
    for outs, read, lengths in steps(case, texts):
        for text, out, tokens, n in zip(texts, outs, read, lengths, strict=True):
            far = [min(n - 1 - t, p.n_local - 1) for t in tokens]
            for h in range(case.shape.Hq):
                want = text.logits_at(0, h, n - 1, tokens, far).softmax(0)
                assert out[0, 0, h, tokens].tolist() == pytest.approx(want.tolist(), abs=1e-9)


def collecting(n: int) -> st.SearchStrategy[attention.Backend]:
    """A window that n tokens do not leave yet."""
    parts = {"n_init": 0, "block": 1, "topk": 0}
    return st.integers(n + 15, n + 30).map(
        lambda local: attention.InfLLM(budget=local + 1, n_local=local, **parts)
    )


@holds(4, summing(collecting))
def test_mass_in_the_window_grows_by_the_number_of_queries(case: Case) -> None:
    """Contract 7: the mass that ranks keys of a block is summed wide, G T a forward."""
    G, tolerance = case.shape.G, SUMS[case.shape.dtype]
    with session(case.backend, case.texts()) as s:
        for counts in case.whole:
            s.feed(counts)
            mass = s.cache.layers[0].state["mass"].data.double().sum(-1)
            for r, n in enumerate(s.at):
                if n <= case.backend.parts.n_local:
                    assert (mass[r] - G * n).abs().max() <= tolerance * G * n

"""The LZ penalty: the specification's tables, the definition at every token, the docstring."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from penalty_cases import ENGINES, close, computed_by, random_scores, row_tokens

from lil import LZPenalty
from lil.penalties._lz_state import extension
from tests.lil.oracles import lz_golden, lz_penalty
from tests.lil.oracles.lz_golden import V


@pytest.fixture(params=ENGINES, scope="module", autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    with computed_by(request.param):
        yield


def vector(named: dict[int, float], other: float) -> torch.Tensor:
    return torch.tensor([lz_golden.all_tokens(named, other)])


@pytest.mark.parametrize("fed", ["at once", "one by one"])
@pytest.mark.parametrize("formula", ["derived", "printed"])
@pytest.mark.parametrize(("x", "buffer", "window", "derived", "printed"), lz_golden.CODES)
def test_lz_golden_values(x, buffer, window, derived, printed, formula, fed):
    penalty = LZPenalty(
        alpha=1.0, window=window, buffer=buffer, formula=formula, include_prompt=True
    )
    ids = torch.tensor([lz_golden.tokens(x)])
    for n in [ids.shape[1]] if fed == "at once" else range(1, ids.shape[1] + 1):
        bits = penalty(ids[:, :n], torch.zeros(1, V)) + 4
    expected = derived if formula == "derived" else {**derived, **printed}
    torch.testing.assert_close(bits, vector(expected, 4.0), atol=2e-6, rtol=0)


@pytest.mark.parametrize("fed", ["at once", "one by one"])
@pytest.mark.parametrize(("x", "buffer", "ring", "taken"), lz_golden.RATES)
def test_lz_rate_golden_values(x, buffer, ring, taken, fed):
    penalty = LZPenalty(alpha=1.0, window=ring, buffer=buffer, formula="rate", include_prompt=True)
    ids = torch.tensor([lz_golden.tokens(x)])
    for n in [ids.shape[1]] if fed == "at once" else range(1, ids.shape[1] + 1):
        scores = penalty(ids[:, :n], torch.zeros(1, V))
    torch.testing.assert_close(-scores, vector(taken, 0.0), atol=6e-5, rtol=0)


@pytest.mark.parametrize("formula", ["derived", "printed", "rate"])
@given(row_tokens, st.integers(1, 8), st.integers(1, 4))
@example([1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 1, 2, 3], 2, 3)
@example([1, 1, 2, 1, 1, 1, 2, 1, 1], 3, 2)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_lz_at_every_token_of_a_stream_equals_the_definition(formula, row, window, buffer):
    """Matches that began before the window are cut at its edge; rings may be short."""
    if formula == "rate":
        window += buffer
    options = {"alpha": 0.3, "window": window, "buffer": buffer, "formula": formula}
    penalty, scores = LZPenalty(**options, include_prompt=True), random_scores(1)
    for n in range(1, len(row) + 1):
        wanted = lz_penalty.penalise(scores[0].tolist(), row[:n], **options)
        close(penalty(torch.tensor([row[:n]]), scores), torch.tensor([wanted]).double())


@pytest.mark.parametrize("formula", ["derived", "printed", "rate"])
def test_lz_writes_its_window_alone_and_exempt_tokens_never(formula):
    options = {"alpha": 0.5, "window": 9, "buffer": 2, "formula": formula, "include_prompt": True}
    row = [9, 9, 9, 9, 9, *[1, 2, 3, 4] * 3]
    scores = random_scores(1)
    plain = LZPenalty(**options)(torch.tensor([row]), scores)
    touched = (plain != scores)[0].nonzero().flatten().tolist()
    assert touched == [1, 2, 3, 4]
    spared = LZPenalty(**options, exempt=[3, 7])(torch.tensor([row]), scores)
    assert spared[0, 3] == scores[0, 3]
    others = [token for token in range(V) if token != 3]
    assert torch.equal(spared[0, others], plain[0, others])


def test_lz_facts_of_its_docstring():
    """Extension values lie in [-1.96, -0.003]; a token of the window loses 1.2 to 2.9."""
    d, length = torch.arange(2.0, 513), torch.arange(1.0, 33)[:, None]
    values = extension("derived", length, d)
    assert -1.96 < values.min() < -1.95
    assert -0.003 < values.max() < -0.0028
    full = math.log2(151_936)
    assert 0.15 * (full - math.log2(512)) == pytest.approx(1.23, abs=0.01)
    assert 0.15 * (full - values.min()) == pytest.approx(2.87, abs=0.01)

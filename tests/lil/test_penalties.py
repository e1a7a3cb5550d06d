"""Penalties: the specification's tables, definitions word for word, and what holds for all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import lil
from attention.errors import InvalidValue
from lil import LZPenalty, penalties
from lil.matching import EMPTY, Matcher

V = 16
PAD = 0  # no stream below holds it

# x, Bf, W, the values of `derived`, and where `printed` differs; other tokens are log2 16 = 4.
GOLDEN = [
    ("1 2 3 4 5 6 7", 2, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    ("5 1 2 3 9 1", 1, 5, {1: 2, 2: -0.415037, 3: 1, 5: 2.321928, 9: 0}, {2: -1.678072}),
    (
        "1 2 3 4 5 6 1 2",
        2,
        6,
        {1: 2.584963, 2: 2.321928, 3: -0.736966, 4: 1.584963, 5: 1, 6: 0},
        {3: -1.736966},
    ),
    ("1 2 3 4 " * 3, 4, 8, {1: -1, 2: 1.584963, 3: 1, 4: 0}, {1: -1.152003}),
    ("1 2 3 4 5 5", 1, 5, {1: 2.321928, 2: 2, 3: 1.584963, 4: 1, 5: 0}, {}),
    (
        "1 2 3 1 2 4 7 1 2",
        2,
        7,
        {1: 2, 2: 1.584963, 3: -0.678072, 4: -1, 7: 0},
        {3: -1.777608, 4: -1.584963},
    ),
    ("1 2 3 4 9 8", 2, 4, {1: 2, 2: 1.584963, 3: 1, 4: 0}, {}),
    (
        "1 2 3 7 2 4 6 1 2",
        2,
        7,
        {1: 2.807355, 2: 1.584963, 3: -0.678072, 4: 1, 6: 0, 7: 2},
        {3: -1.777608},
    ),
    ("1 2 3", 4, 8, {}, {}),
    ("7 " * 10, 3, 5, {7: -1.584963}, {7: -1}),
]
# x, Bf, ring, and what `rate` takes off at alpha = 1.
RATE = [
    ("1 2 3 4 " * 3, 4, 12, {1: 3.0712, 2: 2, 3: 2.4150, 4: 3}),
    ("7 " * 10, 3, 8, {7: 3.25}),
    ("1 2 3 4 5 6 1 2", 2, 8, {1: 2.4150, 2: 3, 3: 2.5359, 4: 1.4150, 5: 1.6781, 6: 2}),
    ("1 2 3 4 5 6 1 2", 2, 6, {1: 2.4150, 2: 3, 5: 1.6781, 6: 2}),
]


def tokens_of(text: str) -> list[int]:
    return [int(token) for token in text.split()]


def vector(values: dict[int, float], other: float) -> Tensor:
    return torch.tensor([[values.get(token, other) for token in range(V)]])


@pytest.mark.parametrize("fed", ["at once", "one by one"])
@pytest.mark.parametrize("formula", ["derived", "printed"])
@pytest.mark.parametrize(("x", "buffer", "window", "derived", "printed"), GOLDEN)
def test_lz_golden_values(x, buffer, window, derived, printed, formula, fed):
    penalty = LZPenalty(
        alpha=1.0, window=window, buffer=buffer, formula=formula, include_prompt=True
    )
    ids = torch.tensor([tokens_of(x)])
    for n in [ids.shape[1]] if fed == "at once" else range(1, ids.shape[1] + 1):
        bits = penalty(ids[:, :n], torch.zeros(1, V)) + 4
    expected = derived if formula == "derived" else {**derived, **printed}
    torch.testing.assert_close(bits, vector(expected, 4.0), atol=2e-6, rtol=0)


@pytest.mark.parametrize("fed", ["at once", "one by one"])
@pytest.mark.parametrize(("x", "buffer", "ring", "taken"), RATE)
def test_lz_rate_golden_values(x, buffer, ring, taken, fed):
    penalty = LZPenalty(alpha=1.0, window=ring, buffer=buffer, formula="rate", include_prompt=True)
    ids = torch.tensor([tokens_of(x)])
    for n in [ids.shape[1]] if fed == "at once" else range(1, ids.shape[1] + 1):
        scores = penalty(ids[:, :n], torch.zeros(1, V))
    torch.testing.assert_close(-scores, vector(taken, 0.0), atol=6e-5, rtol=0)


# Definitions, in loops over one row's tokens; each gives the amount added to each score.


def lz(row: list[int], *, alpha=0.3, window=9, buffer=3, formula="derived") -> dict[int, float]:
    full = math.log2(V)
    if formula == "rate":
        ring = row[-window:]
        rate = dict.fromkeys(ring[buffer:], full)
        for i in range(buffer, len(ring)):
            k = 0
            while k < buffer and ring[i - 1 - k] == ring[-1 - k]:
                k += 1
            value = (math.log2(len(ring) - i + 1) + math.log2(1 + k)) / (1 + k)
            rate[ring[i]] = min(rate[ring[i]], value)
        return {token: alpha * (value - full) for token, value in rate.items()}
    b, w = row[-buffer:], row[:-buffer][-window:]
    bits = {token: math.log2(len(w) - e) for e, token in enumerate(w)}

    def suffix(e: int) -> int:
        fits = range(min(e + 1, len(b)) + 1)
        return max(k for k in fits if w[e + 1 - k : e + 1] == b[len(b) - k :])

    longest = max((suffix(e) for e in range(len(w))), default=0)
    for e in range(len(w) - 1):  # later ones are nearer and overwrite
        if longest >= 1 and suffix(e) == longest:
            d, length = len(w) - e, longest
            if formula == "derived":
                value = math.log2((length + 1) * (d - 1) / (length * d)) - 1
            else:
                length = max(length, 2)
                value = math.log2(1 - (d - length + 1) / (length * d)) - 1
            bits[w[e + 1]] = value
    return {token: alpha * (value - full) for token, value in bits.items()}


def dry(row: list[int], *, breakers=(3,)) -> dict[int, float]:
    found: dict[int, float] = {}
    for i in range(len(row) - 1):
        k = 0
        while k <= i and row[i - k] == row[-1 - k] and row[i - k] not in breakers:
            k += 1
        if k >= 2 and row[i + 1] not in breakers:
            amount = -0.8 * 1.75 ** (min(k, 50) - 2)
            found[row[i + 1]] = min(amount, found.get(row[i + 1], 0.0))
    return found


def banned(row: list[int]) -> dict[int, float]:
    grams = {tuple(row[i : i + 3]) for i in range(len(row) - 2)}
    return {t: -math.inf for t in range(V) if len(row) >= 2 and (*row[-2:], t) in grams}


Amounts = Callable[[list[int]], dict[int, float]]
CASES: dict[str, tuple[dict[str, object], Amounts]] = {
    "lz derived": ({"alpha": 0.3, "window": 9, "buffer": 3}, lz),
    "lz printed": (
        {"alpha": 0.3, "window": 9, "buffer": 3, "formula": "printed"},
        lambda row: lz(row, formula="printed"),
    ),
    "lz rate": (
        {"alpha": 0.3, "window": 9, "buffer": 3, "formula": "rate"},
        lambda row: lz(row, formula="rate"),
    ),
    "lz default": ({}, lambda row: lz(row, alpha=0.15, window=512, buffer=32)),
    "frequency": ({"strength": 0.7}, lambda row: {t: -0.7 * row.count(t) for t in row}),
    "presence": ({"strength": 0.7}, lambda row: dict.fromkeys(row, -0.7)),
    "presence_window": (
        {"strength": 0.7, "window": 6},
        lambda row: dict.fromkeys(row[-6:], -0.7),
    ),
    "dry": ({"sequence_breakers": [3]}, dry),
    "no_repeat_ngram": ({"ngram_size": 3}, banned),
    "repetition": ({"penalty": 1.3}, lambda row: dict.fromkeys(row, math.nan)),
}


def build(case: str, **options: object) -> penalties.HistoryPenalty:
    return penalties.get(case.split()[0], **CASES[case][0], **options)


def expected(case: str, histories: list[list[int]], scores: Tensor) -> Tensor:
    out = scores.double().clone()
    for row, history in enumerate(histories):
        for token, amount in CASES[case][1](history).items():
            if case == "repetition":
                out[row, token] *= 1.3 if out[row, token] < 0 else 1 / 1.3
            else:
                out[row, token] += amount
    return out


def random_scores(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual.double(), wanted, atol=1e-4, rtol=1e-5)


# Few tokens, so that everything repeats; sometimes one block over and over.
row_tokens = st.one_of(
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
    st.builds(
        lambda block, times: (block * times)[:40],
        st.lists(st.integers(1, 9), min_size=1, max_size=6),
        st.integers(2, 12),
    ),
)


@pytest.mark.parametrize("case", CASES)
@given(
    st.lists(row_tokens, min_size=1, max_size=3), st.integers(1, 12), st.booleans(), st.booleans()
)
@example([[1]], 1, True, False)
@example([[1, 2, 1, 2, 1], [1]], 1, True, True)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_batched_padded_and_grown_equals_the_definition(case, rows, prompt, include, by_mask):
    """Ragged prompts padded on the left, then a token a step: each row is as if it were alone."""
    steps = min(len(row) for row in rows) // 2
    prompts = [row[: len(row) - steps] for row in rows]
    width = max(len(row) for row in prompts)
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in prompts])
    if by_mask:
        penalty = build(case, include_prompt=include).with_mask(ids != PAD)
    else:
        penalty = build(case, include_prompt=include, pad_token_id=PAD)
    scores = random_scores(len(rows), seed=prompt)
    for step in range(steps + 1):
        if step:
            newest = [[row[len(own) + step - 1]] for row, own in zip(rows, prompts, strict=True)]
            ids = torch.cat((ids, torch.tensor(newest)), dim=1)
        histories = [
            row[0 if include else len(own) : len(own) + step]
            for row, own in zip(rows, prompts, strict=True)
        ]
        before = scores.clone()
        close(penalty(ids, scores), expected(case, histories, scores))
        assert torch.equal(scores, before)


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
        wanted = scores.double().clone()
        for token, amount in lz(row[:n], **options).items():
            wanted[0, token] += amount
        close(penalty(torch.tensor([row[:n]]), scores), wanted)


@pytest.mark.parametrize("case", CASES)
def test_padding_after_a_rows_end_is_not_history(case):
    """`generate()` feeds rows that ended with padding; here they even go on after it."""
    columns = [(1, 2), (PAD, 1), (2, PAD), (PAD, 2), (1, 1), (2, PAD), (1, 2), (PAD, 1), (2, 2)]
    penalty, scores = build(case, pad_token_id=PAD), random_scores(2)
    ids = torch.tensor([[5, 5], [5, 5]])
    penalty(ids, scores)
    for step, column in enumerate(columns):
        ids = torch.cat((ids, torch.tensor([[token] for token in column])), dim=1)
        histories = [[c[r] for c in columns[: step + 1] if c[r] != PAD] for r in range(2)]
        close(penalty(ids, scores), expected(case, histories, scores))


@pytest.mark.parametrize("case", CASES)
def test_rows_know_nothing_of_each_other(case):
    rng = random.Random(2)
    ids = torch.tensor([[rng.randrange(1, 5) for _ in range(40)] for _ in range(5)])
    scores, order = random_scores(5), [3, 0, 4, 1, 2]
    out = build(case, include_prompt=True)(ids, scores)
    assert torch.equal(build(case, include_prompt=True)(ids[order], scores[order]), out[order])
    alone = [build(case, include_prompt=True)(ids[r : r + 1], scores[r : r + 1]) for r in range(5)]
    assert torch.equal(torch.cat(alone), out)
    assert not torch.equal(out, scores)


@pytest.mark.parametrize("case", CASES)
def test_a_clone_is_independent_and_a_template_stays_empty(case):
    penalty = build(case)
    first = torch.tensor([[1, 2]])
    for n in range(12):
        penalty(torch.cat((first, torch.tensor([[1, 2, 3] * 4])[:, :n]), dim=1), random_scores(1))
    twin = penalty.clone()
    assert twin == penalty
    assert twin.params() == penalty.params()
    scores = random_scores(1)
    assert torch.equal(twin(torch.tensor([[1, 2, 1, 2, 1, 2]]), scores), scores)
    grown = torch.cat((first, torch.tensor([[1, 2, 3] * 4])), dim=1)
    close(penalty(grown, scores), expected(case, [[1, 2, 3] * 4], scores))


@pytest.mark.parametrize("case", CASES)
def test_a_call_that_does_not_go_on_starts_anew_and_beams_are_computed_again(case):
    penalty, scores = build(case), random_scores(2)
    ids = torch.tensor([[5, 5, 5], [5, 5, 5]])
    assert torch.equal(penalty(ids, scores), scores)
    ids = torch.cat((ids, torch.tensor([[1], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[1], [2]], scores))
    # Both rows go on from the second one.
    ids = torch.cat((ids[[1, 1]], torch.tensor([[2], [1]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 2], [2, 1]], scores))
    ids = torch.cat((ids[[1, 0]], torch.tensor([[2], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 1, 2], [2, 2, 2]], scores))
    ids = torch.cat((ids, torch.tensor([[1], [2]])), dim=1)
    close(penalty(ids, scores), expected(case, [[2, 1, 2, 1], [2, 2, 2, 2]], scores))
    # Another prompt, one column wider: a new generation.
    ids = torch.tensor([[6] * 8, [1] * 8])
    assert torch.equal(penalty(ids, scores), scores)
    assert torch.equal(penalty(ids[:1], scores[:1]), scores[:1])


NEUTRAL = {
    "lz": {"alpha": 0.0},
    "frequency": {"strength": 0},
    "presence": {"strength": 0.0},
    "presence_window": {"strength": 0.0},
    "dry": {"multiplier": 0.0},
    "no_repeat_ngram": {"ngram_size": 0},
    "repetition": {"penalty": 1},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_parameters_give_back_the_very_object(name, dtype):
    assert set(NEUTRAL) == set(penalties.names())
    scores = random_scores(1, dtype=dtype)
    penalty = penalties.get(name, include_prompt=True, **NEUTRAL[name])
    assert penalty(torch.tensor([[1, 2] * 20]), scores) is scores


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_other_types_are_kept_and_rounded_once(case, dtype):
    ids = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 4, 1, 2] * 3])
    scores = random_scores(1, dtype=dtype)
    out = build(case, include_prompt=True)(ids, scores)
    assert out.dtype == dtype
    wanted = expected(case, ids.tolist(), scores)
    eps = 2**-8 if dtype == torch.bfloat16 else 1e-9
    torch.testing.assert_close(out.double(), wanted, atol=1e-7, rtol=eps)


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
    values = LZPenalty()._extension(length, d)
    assert -1.96 < values.min() < -1.95
    assert -0.003 < values.max() < -0.0028
    full = math.log2(151_936)
    assert 0.15 * (full - math.log2(512)) == pytest.approx(1.23, abs=0.01)
    assert 0.15 * (full - values.min()) == pytest.approx(2.87, abs=0.01)


def test_ids_beyond_the_scores_are_left_out():
    """Embeddings may have more rows than the model has scores."""
    ids = torch.tensor([[1, V + 3, 1, V + 3, 2, 1, V + 3]])
    scores = random_scores(1)
    for case in CASES:
        out = build(case, include_prompt=True)(ids, scores)
        assert out.shape == scores.shape
        assert torch.equal(out[:, 3:], scores[:, 3:]), case


# The matcher


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=40, max_size=40), min_size=1, max_size=3),
    st.integers(2, 14),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 39),
    st.sets(st.integers(0, 2), max_size=1),
)
@example([[*[0, 1, 2] * 13, 0]], 14, 6, True, 5, {0})
@example([[*[0, 1, 2] * 13, 0]], 14, 6, False, 20, {0})
@settings(max_examples=60, deadline=None, derandomize=True)
def test_matcher_equals_comparing_every_suffix(rows, size, longest, grows, loaded, breakers):
    matcher = Matcher(len(rows), None if grows else size, longest, sorted(breakers))
    matcher.load(torch.tensor([row[:loaded] for row in rows], dtype=torch.int64))
    for n in range(loaded + 1, 41):
        matcher.push(torch.tensor([row[n - 1] for row in rows]))
        for r, row in enumerate(rows):
            held = row[:n] if grows else row[:n][-size:]
            kept = matcher.tokens[r].tolist()
            assert kept == [EMPTY] * (len(kept) - len(held)) + held
            lengths = matcher.lengths[r].tolist()[len(kept) - len(held) :]
            for i in range(len(held) - 1):
                k = 0
                while k <= i and held[i - k] == held[-1 - k] and held[i - k] not in breakers:
                    k += 1
                assert min(lengths[i], i + 1) == min(k, longest)


# In generate() and decode


class Definition(LogitsProcessor):
    """A case's definition as a stateless processor that is told its prompts."""

    def __init__(self, case: str, prompts: list[list[int]], width: int, include: bool) -> None:
        self.case, self.prompts, self.width, self.include = case, prompts, width, include

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        beams = len(input_ids) // len(self.prompts)
        out = scores.clone()
        for r, row in enumerate(input_ids.tolist()):
            prompt = self.prompts[r // beams] if self.include else []
            for token, amount in CASES[self.case][1](prompt + row[self.width :]).items():
                out[r, token] += amount
        return out


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", ["presence", "dry", "frequency"])
def test_generate_with_padding_and_beams_equals_the_definition(case, include, beams, qwen):
    prompts = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 12, 13, 12, 13]]
    width = max(len(row) for row in prompts)
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    options = {"attention_mask": mask, "max_new_tokens": 16, "do_sample": False}
    options |= {"num_beams": beams, "pad_token_id": PAD}

    def run(processor: LogitsProcessor) -> list[list[int]]:
        return qwen.generate(ids, logits_processor=LogitsProcessorList([processor]), **options)

    penalty = build(case, include_prompt=include).with_mask(mask)
    wanted = run(Definition(case, prompts, width, include))
    for _ in range(2):  # one object serves one generation after another
        assert torch.equal(run(penalty), wanted)
    assert not torch.equal(wanted, qwen.generate(ids, **options))


@pytest.mark.parametrize("case", ["lz derived", "dry", "presence_window"])
def test_decode_equals_generate_row_by_row(case, qwen, tokenizer):
    prompts = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30]]
    template = build(case)
    traces = lil.decode(
        qwen, tokenizer, prompts, penalties=[template], max_new_tokens=20, batch_size=3
    )
    for prompt, trace in zip(prompts, traces, strict=True):
        ids = torch.tensor([prompt])
        processors = LogitsProcessorList([template.clone()])
        out = qwen.generate(ids, logits_processor=processors, max_new_tokens=20, do_sample=False)
        assert list(trace.new_ids) == out[0, len(prompt) :].tolist()


# Names and refusals


def test_penalties_by_name():
    wanted = ["dry", "frequency", "lz", "no_repeat_ngram", "presence", "presence_window"]
    assert penalties.names() == [*wanted, "repetition"]
    assert penalties.get("lz", alpha=0.2) == LZPenalty(alpha=0.2)
    for name, line in penalties.describe().items():
        penalty = penalties.get(name)
        assert isinstance(penalty, penalties.Penalty)
        assert isinstance(penalty, LogitsProcessor)
        assert penalties.get(name, **penalty.params()) == penalty
        assert line.endswith(").")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lzz", {}, "did you mean 'lz'"),
        ("lz", {"alfa": 1}, "did you mean 'alpha'"),
        ("lz", {"alpha": -1}, "alpha = -1"),
        ("lz", {"alpha": math.nan}, "alpha = nan"),
        ("lz", {"window": 0}, "window = 0"),
        ("lz", {"buffer": 0}, "buffer = 0"),
        ("lz", {"formula": "rates"}, "did you mean 'rate'"),
        ("lz", {"formula": "rate", "window": 32}, "window = 32"),
        ("repetition", {"penalty": 0}, "penalty = 0"),
        ("frequency", {"strength": math.inf}, "strength = inf"),
        ("presence", {"strength": math.nan}, "strength = nan"),
        ("presence_window", {"strength": math.nan}, "strength = nan"),
        ("presence_window", {"window": 0}, "window = 0"),
        ("dry", {"multiplier": -0.1}, "multiplier = -0.1"),
        ("dry", {"base": 0.5}, "base = 0.5"),
        ("dry", {"allowed_length": 0}, "allowed_length = 0"),
        ("dry", {"longest": 1}, "longest = 1"),
        ("no_repeat_ngram", {"ngram_size": -1}, "ngram_size = -1"),
    ],
)
def test_bad_parameters_are_refused(name, options, message):
    with pytest.raises(InvalidValue, match=message):
        penalties.get(name, **options)


def test_shapes_that_do_not_belong_together_are_refused():
    scores = random_scores(2)
    with pytest.raises(InvalidValue, match="input_ids and scores"):
        LZPenalty()(torch.tensor([[1, 2]]), scores)
    with pytest.raises(InvalidValue, match="attention_mask"):
        LZPenalty(include_prompt=True).with_mask(torch.ones(2, 5))(torch.ones(2, 4).long(), scores)
    with pytest.raises(InvalidValue, match="attention_mask"):
        LZPenalty().with_mask(torch.ones(5))

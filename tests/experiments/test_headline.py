"""The headline: three sentences at most, each true of the rows."""

from __future__ import annotations

from synthetic_samples import sample, sparse

from experiments.report.headline import headline
from experiments.report.measures import summarise
from experiments.store.samples.sample import Sample


def headline_of(samples: list[Sample]) -> str:
    return headline(summarise(samples, seed=0))


def full(count: int) -> list[Sample]:
    return [sample(i, tokens=100) for i in range(count)]


def test_the_largest_difference_is_named_where_it_is_not_clear() -> None:
    clear = [sparse(i, backend="quest", tokens=150 + i % 3) for i in range(12)]
    unclear = [sparse(i, tokens=200 if i < 5 else 100, correct=i > 0) for i in range(12)]
    lengths, cost = headline_of(full(12) + clear + unclear).split(". ")
    assert lengths.startswith("Outputs are clearly longer in 1 (quest 32) of 2 configurations; ")
    assert "the largest difference is 1.51 times full attention's length [" in lengths
    assert cost.startswith("A solved problem takes ")
    larger = [sparse(i, tokens=200 if i < 11 else 60) for i in range(5)]
    text = headline_of(full(5) + larger)
    assert text.startswith("No difference in output length is clear in 1 configuration; ")
    assert (
        "the largest difference, not clear, is 2.00 times full attention's length (h2o 32)" in text
    )


def test_where_full_attention_never_ends_nothing_is_claimed() -> None:
    cut = [sample(i, status="capped") for i in range(8)]
    text = headline_of(cut + [sparse(i, tokens=150) for i in range(8)])
    assert text.startswith("Nothing can be said about output length")

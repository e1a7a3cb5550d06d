"""pass@k: what a count over all subsets gives, with intervals by problem, and in a table."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from synthetic_samples import sample, sparse

from experiments.report.aggregate import pass_at, steps
from experiments.report.measures import rows
from experiments.report.tables import sampling_tables
from experiments.store.samples.sample import Sample


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_it_is_the_share_of_subsets_with_a_solved_one(n: int) -> None:
    for solved in range(n + 1):
        drawn = [True] * solved + [False] * (n - solved)
        for k in range(1, n + 1):
            subsets = list(combinations(drawn, k))
            share = sum(map(any, subsets)) / len(subsets)
            assert pass_at(n, solved, k) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(("n", "solved", "k"), [(4, 2, 0), (4, 2, 5), (4, 5, 1), (4, -1, 1)])
def test_what_cannot_be_drawn_is_refused(n: int, solved: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at(n, solved, k)


@pytest.mark.parametrize(
    ("n", "expected"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 5]), (64, [1, 2, 5, 10, 20, 50, 64])]
)
def test_steps_end_with_all_that_were_drawn(n: int, expected: list[int]) -> None:
    assert list(steps(n)) == expected


def drawn(of_problem: list[int], n: int = 8) -> list[Sample]:
    """So many of n samples of each problem solved, under full attention and under h2o."""
    return [
        make(problem, sample_index=index, correct=index < solved)
        for problem, solved in enumerate(of_problem)
        for index in range(n)
        for make in (sample, sparse)
    ]


def test_a_row_has_them_up_to_the_number_drawn() -> None:
    _, row = rows(drawn([0, 1, 4, 8]), seed=0)
    assert row.samples_per_problem == 8
    assert list(row.pass_at) == [1, 2, 5, 8]
    assert row.pass_at[1].estimate == pytest.approx(row.avg_at_k) == pytest.approx(13 / 32)
    assert row.pass_at[8].estimate == row.pass_at_k == pytest.approx(3 / 4)
    # of 28 pairs without: 0 solved 28, 1 solved 21, 4 solved 6, 8 solved none
    assert row.pass_at[2].estimate == pytest.approx((0 + 7 + 22 + 28) / 28 / 4)
    assert list(row.to_dict()["pass_at"]) == ["1", "2", "5", "8"]


def test_intervals_are_those_of_problems_not_of_samples() -> None:
    """All samples of a problem alike: eight each say no more than one each."""
    random.seed(3)
    alike = [8 * (random.random() < 0.6) for _ in range(20)]
    _, eight = rows(drawn(alike), seed=0)
    _, two = rows(drawn([solved // 4 for solved in alike], n=2), seed=0)
    assert eight.pass_at[1].low == pytest.approx(two.pass_at[1].low)
    assert eight.pass_at[2].high == pytest.approx(two.pass_at[2].high)
    assert eight.pass_at[1].high - eight.pass_at[1].low > 0.3


def test_one_sample_or_a_missing_one_has_none() -> None:
    assert rows(drawn([1, 0], n=1), seed=0)[0].pass_at == {}
    assert rows(drawn([8, 8])[:-2], seed=0)[0].pass_at == {}  # 7 of the second
    unscored = [*drawn([8]), sample(1, sample_index=0, correct=None)]
    assert rows(unscored, seed=0)[0].pass_at == {}


def test_the_table_shows_first_last_and_between_with_samples_a_problem() -> None:
    assert sampling_tables(rows(drawn([1, 1], n=1), seed=0)) == []
    (table,) = sampling_tables(rows(drawn([0, 3, 30, 64] * 3, n=64), seed=0))
    names = [str(column.header) for column in table.columns]
    assert names == ["backend", "budget", "pass@1", "pass@5", "pass@20", "pass@64"]
    assert "12 problems x 64 samples" in str(table.title)
    shown = list(table.columns[5].cells)
    assert str(shown[0]).startswith(r"75 \[")

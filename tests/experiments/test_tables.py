"""Tables hold the right numbers in the right cells and fit the terminal."""

from __future__ import annotations

import io
import re

import pytest
from crowded_samples import crowded
from rich.console import Console
from rich.table import Table
from synthetic_samples import demo, failed, guarded, sample, sparse

from experiments.report.measures import rows
from experiments.report.tables import (
    cost_tables,
    main_tables,
    penalty_tables,
    sampling_tables,
    table1,
    table3,
)
from experiments.store.samples.sample import Sample


def lines(table: Table, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def cells(table: Table) -> list[list[str]]:
    columns = [list(column.cells) for column in table.columns]
    return [[str(cell) for cell in row] for row in zip(*columns, strict=True)]


def small_sweep() -> list[Sample]:
    full = [sample(i, tokens=100, keys_read=1000.0, correct=i != 9) for i in range(10)]
    short = [
        sparse(i, tokens=150 if i < 5 else 200, keys_read=500.0, correct=i < 2) for i in range(10)
    ]
    large = [sparse(i, budget=64, tokens=100, correct=i != 9) for i in range(10)]
    watched = [guarded(one, 100 if one.budget == 32 else None) for one in [*short, *large]]
    return full + short + large + watched


def test_main_table_cell_by_cell() -> None:
    (table,) = main_tables(rows(small_sweep(), seed=0))
    full, short, large = cells(table)
    assert full == ["full", "—", r"90 \[60, 98]", "—", "—", "—", "0%"]
    assert short[:3] == ["h2o", "32", r"20 \[6, 51]"]
    assert short[3] == "[bold]-70.0 \\[-89, -23][/]"
    assert short[4].startswith(r"[bold]1.73 \[1.5")
    assert short[5] == "10"
    assert large[:3] == ["", "64", r"90 \[60, 98]"]
    assert large[3:] == [r"0.0 \[-28, 28]", "1.00", "0", "0%"]


def test_cost_table_cell_by_cell() -> None:
    (table,) = cost_tables(rows(small_sweep(), seed=0))
    full, short, large = cells(table)
    assert full == ["full", "—", "—", "9", "1.111k", "0.40", "0%"]
    # both solve two problems, at 1.5 times: too few for an interval; 5000 / 2 over 10000 / 9
    assert short[2:5] == ["1.50", "2", "2.25"]
    assert large[2:5] == ["1.00", "9", "1.00"]
    assert "fewer keys per solved problem at budgets: h2o: none of 2" in str(table.title)


def test_what_cannot_be_compared_is_said_and_has_no_number() -> None:
    samples = [sample(i) for i in range(3)]
    samples += [sparse(0, correct=False), sparse(1, correct=False), failed(2)]
    samples += [sparse(i, budget=64, item_id=f"x{i}") for i in range(3)]
    samples += [sparse(i, budget=128, correct=False) for i in range(3)]
    found = rows(samples, seed=0)
    (table,) = main_tables(found)
    assert "1 samples failed (lil sweep --retry-failed)" in str(table.title)
    _, short, unpaired, unsolved = cells(table)
    assert short == ["h2o", "32", "2 of 3,", "not comparable", "—", "—", "—"]
    assert unpaired[3:] == ["—", "—", "—", "0%"]
    (cost,) = cost_tables(found)
    assert [line[4] for line in cells(cost)] == ["1k", "—", "—", "none solved"]
    assert unsolved[3].startswith("-100.0")


def test_censored_pairs_stand_in_the_title() -> None:
    cut = {"status": "capped", "finish": "length", "correct": False}
    samples = [sample(0), sample(1, **cut), sparse(0), sparse(1, **cut)]
    (table,) = main_tables(rows(samples, seed=0))
    assert "1 of full attention's cut at its cap: in no ratio" in str(table.title)
    assert [line[-1] for line in cells(table)] == ["50%", "50%"]


MAKERS = (main_tables, cost_tables, sampling_tables, table1, table3, penalty_tables)


def wrapped(table: Table, width: int) -> list[str]:
    """What stands below the heading if it has more lines than its cells ask for."""
    table.title = table.caption = None
    shown = [line for line in lines(table, width) if line.strip()]
    assert max(map(len, shown)) <= width
    body = shown[next(i for i, line in enumerate(shown) if "──" in line) + 1 :]
    told = sum(max(cell.count("\n") + 1 for cell in line) for line in cells(table))
    return [] if len(body) == told else body


def several() -> list[Sample]:
    """Sixteen samples of four problems, in a store beside the demo's backends."""
    return [
        make(i, sample_index=j, correct=j % 3 == 0, tokens=90 + j, dataset="x")
        for i in range(4)
        for j in range(16)
        for make in (sample, sparse)
    ]


@pytest.mark.parametrize("made", [demo(problems=8), crowded(), several()], ids=len)
def test_at_eighty_columns_no_cell_is_wrapped(made: list[Sample]) -> None:
    found = rows(made, seed=0)
    for table in (table for make in MAKERS for table in make(found)):
        assert max(len(line.rstrip()) for line in lines(table)) <= 80
        assert max(cell.count("\n") for line in cells(table) for cell in line) == 0
        assert wrapped(table, 80) == []


@pytest.mark.parametrize("made", [demo(problems=8), several()], ids=len)
def test_at_sixty_intervals_stand_below_and_nothing_is_cut(made: list[Sample]) -> None:
    found = rows(made, seed=0)
    for table in (table for make in MAKERS for table in make(found, 60)):
        assert wrapped(table, 60) == []


def test_what_a_narrow_terminal_cannot_hold_is_folded_not_lost() -> None:
    found = rows(crowded(), seed=0)
    for table in (table for make in MAKERS for table in make(found, 60)):
        shown = "".join("".join(lines(table, 60)).split())
        for line in cells(table):
            for cell in line:
                for number in re.findall(r"\d+\.\d+", cell):
                    assert number[:3] in shown


def test_long_labels_get_a_number_that_is_explained() -> None:
    table = main_tables(rows(crowded(), seed=0))[0]
    labels = [line[0] for line in cells(table) if line[0]]
    assert labels == ["full", "h2o", "sink", "quest¹", "quest²"]
    assert "quest¹: quest dense_layers=0 page=8; quest²: quest dense" in str(table.caption)
    assert str(table.title).startswith("mine/compe…2019-2024: 4 problems (DeepThough…-Instruct)")


def test_pairs_left_out_stand_where_ratios_do() -> None:
    found = rows(crowded(), seed=0)
    for table in [*main_tables(found), *cost_tables(found)]:
        assert "1 of full attention's cut at its cap: in no ratio" in str(table.title)
    for table in table1(found):  # needs no partner
        assert "cut at its cap" not in str(table.title)


def test_one_table_a_data_set_from_easy_to_hard() -> None:
    tables = main_tables(rows(demo(problems=2), seed=0))
    assert [str(table.title).split(":")[0] for table in tables] == ["easy", "medium", "hard"]
    assert [table.caption is None for table in tables] == [True, True, False]


def test_table_1_shows_savings_and_accuracy_change_by_backend_and_budget() -> None:
    samples = small_sweep()
    samples += [guarded(one, None) for one in samples[:10]]
    samples = [
        Sample(**{**vars(one), "correct": False}) if one.status == "stopped" else one
        for one in samples
    ]
    (table,) = table1(rows(samples, seed=0))
    assert [str(column.header) for column in table.columns] == ["data set", "budget", "full", "h2o"]
    assert cells(table) == [
        ["easy", "—", "0.0 / 0.0", ""],
        ["", "32", "", "42.9 / -20.0"],
        ["", "64", "", "0.0 / 0.0"],
    ]
    assert str(table.title).startswith("Table 1: tokens saved by Guardian")


def test_table_3_parts_correct_and_incorrect() -> None:
    (table,) = table3(rows(small_sweep(), seed=0))
    # correct: two of 150 stopped at 100; incorrect: 450 + 1000 tokens stopped at 800
    assert cells(table)[0] == ["easy", "32", f"{100 / 3:.1f} / {100 * (1 - 800 / 1450):.1f}"]
    assert cells(table)[1] == ["", "64", "0.0 / 0.0"]


def test_two_actions_of_a_detector_are_told_apart() -> None:
    alone = [sample(0), sparse(0)]
    stop = guarded(alone[1], 50)
    finish = Sample(**{**vars(guarded(alone[1], 70)), "action": "finish"})
    tables = table1(rows([*alone, stop, finish], seed=0))
    titles = [str(table.title) for table in tables]
    assert ["(finish)" in titles[0], "(stop)" in titles[1]] == [True, True]
    assert [cells(table)[0][-1] for table in tables] == ["30.0 / 0.0", "50.0 / 0.0"]


def test_parameters_that_differ_are_named() -> None:
    samples = [sample(0)] + [
        sparse(0, backend="quest", backend_params=(("dense_layers", 0), ("page", page)))
        for page in (8, 16)
    ]
    (table,) = main_tables(rows(samples, seed=0))
    assert [row[0] for row in cells(table)] == ["full", "quest page=16", "quest page=8"]


@pytest.mark.parametrize("make", [main_tables, cost_tables, table1, table3])
def test_no_rows_no_tables(make: object) -> None:
    assert make([]) == []  # type: ignore[operator]


def test_a_models_brackets_are_text() -> None:
    samples = [sample(0, model="x/[red]a[b]"), sparse(0, model="x/[red]a[b]")]
    assert "([red]a[b])" in "\n".join(lines(main_tables(rows(samples, seed=0))[0]))

"""`lil board`: numbers that are known by hand, promises that cannot be proved, nulls, refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import json_of
from synthetic_samples import sample, sparse

import lil
from experiments.cli import main
from experiments.grid.detectors import labels
from experiments.report.board import BoardRow, Ladder, Watched, make_board
from experiments.report.tables.detectors import board_grids
from experiments.store.samples.sample import Sample

CapFd = pytest.CaptureFixture[str]
SMALL = Path(__file__).parent / "data" / "small"
GONE: dict[str, Any] = {"status": "missing", "tokens": None, "correct": None, "stopped_at": None}
STEPS = [lil.Budget(150), lil.Budget(50), lil.Budget(10)]


def decoded(problems: int = 40, loops: int = 20) -> Iterator[Sample]:
    """Right texts of 100 tokens, two a problem, and wrong ones of 200 with a loop of 120."""
    for item in range(problems):
        for index in (0, 1):
            yield sample(item, sample_index=index, record=f"{item}-{index}")
    wrong = {"tokens": 200, "keys_read": 3000.0, "correct": False, "status": "capped"}
    for item in range(loops):
        own = {"record": f"x{item}", "wasted_loop": 120, "wasted_tail": 160}
        yield sample(f"x{item}", **wrong, **own)


def stopped(plain: Sample, at: int, name: str) -> Sample:
    """The text under a step: one right sample of two keeps its answer at 50 tokens, none at 10."""
    watched = replace(plain, detector=name, action="stop")
    if plain.tokens is None or at >= plain.tokens:
        return watched
    wasted = plain.wasted_loop is not None
    return replace(
        watched,
        status="stopped",
        tokens=at,
        stopped_at=at,
        keys_read=10.0 * at,
        correct=bool(plain.correct and at == 50 and plain.sample_index == 0),
        wasted_loop=30 if wasted else None,
        wasted_tail=0 if wasted else None,
    )


def watched(plain: Sequence[Sample], **asked: Any) -> list[Sample]:
    """They under the three steps."""
    steps = zip((150, 50, 10), labels(STEPS), strict=True)
    cut = (replace(stopped(p, at, name), **asked) for at, name in steps for p in plain)
    return [*plain, *cut]


def board_of(samples: Sequence[Sample], steps: Sequence[lil.Detector] = STEPS) -> Watched:
    """A store with one ladder."""
    return Watched(0.0, samples, [Ladder("tokens", steps)])


def only(rate: float, store: Watched) -> BoardRow:
    """The first row of one store."""
    ((row, *_),) = make_board([store], rate, seed=0).values()
    return row


def test_the_setting_that_the_rate_allows_and_what_it_does_on_the_other_half() -> None:
    """Half of the answers are lost at 50 tokens: a rate of 0.9 allows it, one of 0.2 does not."""
    store = board_of(watched([*decoded(41, 21)]))  # the half that chooses has the odd ones
    row = only(0.9, store)
    assert row.setting == "tokens=50"
    effect = row.effect
    assert effect is not None
    assert (row.problems, row.answers, row.lost) == (21, 42, 21)
    assert 0.5 < row.high < 0.9
    # 40 right texts of 100 tokens and 1,000 keys, 10 wrong ones of 200 tokens and 3,000 keys.
    assert (row.judged, effect.solved, effect.fired) == (50, 40, 50)
    assert effect.tokens.estimate == pytest.approx(1 - 50 * 50 / 6000)
    assert row.keys.estimate == pytest.approx(1 - 50 * 500 / 70000)
    assert (effect.change.lost, effect.change.gained) == (20, 0)
    assert effect.change.estimate == pytest.approx(-20 / 50)
    assert row.loops.estimate == pytest.approx(1 - 30 / 120)
    assert row.tails.estimate == 1
    low, high = effect.tokens.low, effect.tokens.high
    assert low is not None
    assert high is not None
    assert low < 1 - 50 * 50 / 6000 < high

    row = only(0.2, store)
    assert row.setting == "tokens=150"
    assert row.effect is not None
    assert (row.effect.change.lost, row.effect.fired) == (0, 10)
    assert row.effect.tokens.estimate == pytest.approx(10 * 50 / 6000)


def test_what_a_detector_asks_is_taken_off_what_it_spares() -> None:
    plain = [*decoded()]
    store = board_of(watched(plain, asked_tokens=6, asked_keys=70.0))
    row = only(0.9, store)
    assert row.effect is not None
    assert row.asked_tokens == pytest.approx(50 * 6 / 6000)
    assert row.asked_keys == pytest.approx(50 * 70 / 70000)
    assert row.effect.tokens.estimate == pytest.approx(1 - 50 * 56 / 6000)
    assert row.keys.estimate == pytest.approx(1 - 50 * 500 / 70000)  # read for questions, too
    (grid,) = board_grids(make_board([store], 0.9, seed=0))
    assert (grid.columns[-1], grid.lines[0].cells[-1].value) == ("asked", "5, 5")


def test_the_first_right_answer_says_what_no_detector_can_pass() -> None:
    plain = [replace(s, first_right=30 if s.correct else None) for s in decoded()]
    ((*_, row, _),) = make_board([board_of(watched(plain))], 0.2, seed=0).values()
    assert (row.label, row.effect and row.effect.tokens.estimate) == ("first right answer", 0.7)


@pytest.mark.parametrize(
    ("problems", "rate", "words"),
    [
        # Two samples a problem: Hoeffding's bound, 1 - 0.05 ** (1 / 10).
        (20, 0.2, "no setting: 10 problems prove nothing below 25.89%"),
        (0, 0.2, "no setting: 0 problems prove nothing below 100.00%"),
    ],
)
def test_what_cannot_be_proved_has_no_number(problems: int, rate: float, words: str) -> None:
    store = board_of(watched([*decoded(problems)]))
    row = only(rate, store)
    assert (row.setting, row.effect, row.reason) == (None, None, words)
    (grid,) = board_grids(make_board([store], rate, seed=0))
    first, *others = (cell.value for cell in grid.lines[0].cells)
    assert (first, {*others} | {"—"}) == ("no setting", {"—"})
    assert words in grid.caption


def test_a_cautious_step_that_loses_answers_says_so() -> None:
    last = labels(STEPS)[-1]
    eager = [replace(s, detector="budget") for s in watched([*decoded()]) if s.detector == last]
    row = only(0.5, board_of([*decoded(), *eager], STEPS[2:]))
    assert row.reason == (
        "no setting: 20 problems with 40 of 40 answers lost prove nothing below 100.00%"
    )


def test_steps_of_which_runs_are_missing_are_not_chosen() -> None:
    """Of another action the store has what its sweep decoded."""
    plain, missing = [*decoded()], labels(STEPS)[1:]
    cut = [s for s in watched(plain) if s.detector != "none"]
    steps = [replace(step, on_stop="answer") for step in STEPS]
    for gone in (missing[:1], missing, labels(STEPS)):
        acted = [replace(s, action="answer", **GONE if s.detector in gone else {}) for s in cut]
        row = only(0.9, board_of([*plain, *acted], steps))
        assert row.label == ("null" if gone == labels(STEPS) else "budget:answer tokens=150")


def test_groups_and_a_run_that_two_stores_have() -> None:
    """Blocks by model, temperature and attention; controls are on none."""
    plain = [*decoded(30)]
    few = [sparse(item, record=f"s{item}") for item in range(8)]
    control = [replace(s, role="control", backend="random") for s in few]
    greedy = board_of(watched([*plain, *few, *control]))
    other = board_of(watched([*plain[:20], *few]))
    warm = board_of(watched(plain))._replace(temperature=0.6)
    board = make_board([greedy, other, warm], 0.9, seed=0)
    assert [(g.temperature, g.attention) for g in board] == [
        (0.0, "full attention"),
        (0.0, "sparse attention"),
        (0.6, "full attention"),
    ]
    counts = [row.answers for row, *_ in board.values()]
    assert counts == [30, 4, 30]


@pytest.mark.parametrize("again", ["full again", "next sample"])
def test_the_null_is_a_row_whose_interval_contains_zero(again: str) -> None:
    """Of 60 problems the second draw loses 6, gains 6 and is as long in the mean."""
    second: dict[str, Any] = {"sample_index": 1}
    if again == "full again":
        second = {"backend": again, "role": "null"}
    first, then = [], []
    for item in range(60):
        first.append(sample(item, correct=item >= 6, record=f"a{item}"))
        tokens, right = (120 if item % 2 else 80), not 6 <= item < 12
        then.append(sample(item, correct=right, tokens=tokens, record=f"b{item}", **second))
    assert again == "full again" or len({s.pair for s in first + then}) == 120
    plain = [*first, *then]
    ((*_, null),) = make_board([Watched(0.6, plain, [])] * 2, 0.5, seed=0).values()
    assert (null.detector, null.problems) == ("null", None)
    effect = null.effect
    assert effect is not None
    assert (null.judged, effect.change.lost, effect.change.gained) == (60, 6, 6)
    assert effect.tokens.estimate == pytest.approx(0, abs=1e-12)
    for interval in (effect.change, effect.tokens):
        assert interval.low is not None
        assert interval.low < 0 < (interval.high or 0)


def test_the_command(capfd: CapFd, tmp_path: Path) -> None:
    store = shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache"))
    result = json_of(capfd, "board", store, "--rate", "0.9", "--out", tmp_path / "x.svg")
    assert [*map(Path, result["figures"])] == [tmp_path / "x.png", tmp_path / "x.svg"]
    assert all(Path(path).stat().st_size > 10_000 for path in result["figures"])
    left_out = {reason.partition(":")[0] for reason in result["left_out"]}
    assert left_out >= {"margin", "stall"}
    first = result["groups"][0]
    assert (first["attention"], first["penalty"]) == ("full attention", "none")
    names = [row["detector"] for row in first["rows"]]
    stop = ["budget", "chopper", "cycle", "guardian", "recurrence"]
    assert [name for name in names if ":" not in name] == stop
    # The sweep had these, at one setting; h2o cannot go back to all keys.
    acted = ["guardian:answer", "guardian:densify", "guardian:regenerate"]
    assert [name for name in names if ":" in name] == acted
    rows = {row["detector"]: row for row in result["groups"][1]["rows"]}
    of_answer, of_densify = (rows[name]["judged"] for name in (acted[0], acted[1]))
    assert of_answer == 2 * of_densify


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--rate 0", "rate = 0.0: expected a number above 0 and below 1"),
        ("--detector stall", "lack its notes"),
        ("--detector either", "--set either.PARAMETER=VALUE"),
        ("--detector budgt", "did you mean 'budget'"),
        ("--detector guardian:answer", "a name, or with parameters"),
        ("--out x.pdf", "ends in .png, .svg"),
        ("--scorer mine:score", "one that the store names"),
    ],
)
def test_refusals(capfd: CapFd, tmp_path: Path, flags: str, words: str) -> None:
    store = shutil.copytree(SMALL, tmp_path / "store", ignore=shutil.ignore_patterns("cache"))
    assert main(["board", str(store), *flags.split()]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("lil: error")) == ("", 1)
    assert words in err
    assert not (store / "figures").exists()

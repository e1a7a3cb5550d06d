"""What is counted of outputs, on outputs written by hand and on a small store, and what is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import trace_readings
import trace_sentences
from trace_readings import Output

from attention.errors import InvalidValue
from experiments.reasoner import problem, words
from experiments.reasoner.judge import pieces, read
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

SMALL = Path(__file__).parent / "experiments" / "data" / "small"
DRAWN = problem("easy", "test", 3)  # the shoe costs 34
ITEM = DRAWN.id
END = "The thing we want is shoe, shoe is {}.\n\n</think>\n\nThe answer is \\boxed{{{}}}.<eos>"
RIGHT = "So shoe, cake is 21, plus scarf is 13. After cake, shoe is 34.\n\n"
WRONG = "So shoe, cake is 20, plus scarf is 13. After cake, shoe is 33.\n\n"
MEND = "After cake, shoe was {}? The shoe joins the cake with the scarf. cake is 21, plus scarf is"
MEND += " 13 is {}, no. Wait, in fact shoe is {}.\n\n"
GIVE_UP = "I can not find it, I give up.\n\n</think>\n\nThe answer is not known.<eos>"


def output(text: str, budget: int | None = 64, status: str = "ok", loop: int = 0) -> Output:
    """An output of the problem above."""
    reading = read(DRAWN, text)
    backend = "h2o" if budget else "full"
    sample = Sample(
        model="m", dataset="easy", item_id=ITEM, sample_index=0, backend=backend,
        backend_params=(), budget=budget, penalty="none", status=status, tokens=reading.tokens,
        correct=reading.solved, wasted_loop=loop, wasted_tail=0,
    )  # fmt: skip
    return Output(sample, DRAWN, reading, loop)


def n(text: str) -> int:
    """Its tokens."""
    return len(pieces(text))


FULL = output(RIGHT + END.format(34, 34), None)
WON = output(WRONG + MEND.format(33, 34, 34) + END.format(34, 34))
LOST = output(RIGHT + MEND.format(34, 33, 33) + END.format(33, 33))
GAVE_UP = output(GIVE_UP)
CUT = output(RIGHT + "Let me check.\n\n" * 9, status="capped", loop=8 * n("Let me check.\n\n"))
SPARSE = (WON, LOST, GAVE_UP, CUT)


def test_answers() -> None:
    found = trace_readings.answers(SPARSE)
    named = {key: found[key] for key in ("n", "solved", "first_right", "last_right", "ever_right")}
    assert named == {"n": 4, "solved": 1, "first_right": 2, "last_right": 2, "ever_right": 3}
    assert (found["first_gained"], found["first_lost"]) == (2, 1)
    assert found["first_p"] == 1
    goal = RIGHT.removesuffix(".\n\n")
    first = min(n(goal) + n("\n\n</think>\n\nThe answer is \\boxed{1}.<eos>"), CUT.reading.tokens)
    kept = 3 * first + n(GIVE_UP)
    tokens = sum(one.reading.tokens for one in SPARSE)
    assert found["first_tokens_saved"] == pytest.approx(1 - kept / tokens)
    until = 2 * n(goal) + n(WRONG + MEND.format(33, 34, 34).removesuffix(".\n\n"))
    assert (found["tokens"], found["tokens_to_right"]) == (tokens, until)
    assert found["tokens_after_right"] == tokens - n(GIVE_UP) - until


def test_outputs_that_are_not_solved() -> None:
    found = trace_readings.unsolved(SPARSE)
    assert {key: found[key] for key in ("cut", "gave_up", "wrong", "once_right")} == {
        "cut": 1,
        "gave_up": 1,
        "wrong": 1,
        "once_right": 2,
    }
    assert found["wasted_cut"] == n("Let me check.\n\n" * 9)
    assert found["wasted_ended"] == n(GIVE_UP) + LOST.reading.tokens - n(RIGHT)
    assert found["loops_in_wasted_cut"] == n("Let me check.\n\n" * 8)
    assert found["tails_in_wasted_cut"] == 0


def test_checks() -> None:
    found = trace_readings.checks(SPARSE)
    told = ("right_to_wrong", "wrong_to_right", "wrong_to_wrong", "with_wrong", "with_disagreement")
    assert [found[key] for key in told] == [1, 1, 0, 2, 2]
    assert trace_readings.checks([FULL])["disagreements"] == 0


def test_excess() -> None:
    found = trace_readings.excess(SPARSE, [FULL])
    more = {one.end: one.reading.tokens - FULL.reading.tokens for one in (WON, LOST, CUT)}
    assert found["by_end"] == more
    assert found["longer"] == 3
    assert (found["shorter"], found["shorter_by_end"]) == (1, {"gave up": 1})
    assert found["by_kind"]["loop"] == CUT.loop
    assert found["by_kind"]["derived"] == 0, "as many as under full attention"
    assert found["by_kind"]["mended"] == n(MEND.format(33, 34, 34)) + n(MEND.format(34, 33, 33))
    assert found["both_right"] == 3
    assert found["more_before_right"] == n(WRONG + MEND.format(33, 34, 34)) - n(RIGHT)
    assert found["more_before_right"] + found["more_after_right"] == sum(more.values())


def stopped(one: Output, at: int | None, text: str, correct: bool) -> tuple[Sample, Output]:
    """It under a detector."""
    changed = {"detector": "d", "action": "answer", "stopped_at": at, "text": text}
    return Sample(**{**vars(one.sample), **changed, "correct": correct}), one


def test_what_a_detector_spares_and_luck_gives() -> None:
    behind = n("Let me check.\n\n" * 7)
    pairs = [
        stopped(CUT, CUT.reading.tokens - behind, "\\boxed{34}", True),
        stopped(LOST, LOST.reading.tokens - 1, "\\boxed{7}", False),
        stopped(WON, n(WRONG), "none", False),
        stopped(GAVE_UP, None, GIVE_UP, False),
    ]
    golds = {"easy": {ITEM: "34", "a": "7", "b": "34", "c": "9"}}
    found = trace_readings.detected(pairs, golds)
    assert (found["n"], found["fired"], found["answered"], found["answered_right"]) == (4, 3, 2, 1)
    assert found["luck"] == pytest.approx(1 / 3 + 1 / 3)
    assert (found["spared_cut"], found["wasted_cut"]) == (behind, CUT.reading.wasted)
    assert found["spared_ended"] == 1
    assert (found["once_right"], found["stated_right"]) == (2, 1)
    assert (found["fired_solved"], found["lost"], found["gained"]) == (1, 1, 1)


@pytest.mark.parametrize("item", ["7", "easy/test/x", "easy/none/3", "algebra/test/3"])
def test_other_problems_are_refused(item: str) -> None:
    with pytest.raises(InvalidValue, match="the reasoner's own problems"):
        trace_readings.asked_by(item, DRAWN.prompt.encode())


def test_a_problem_that_is_not_in_the_prompt_is_refused() -> None:
    assert trace_readings.asked_by(ITEM, b"Say: " + DRAWN.prompt.encode()) == DRAWN
    with pytest.raises(InvalidValue, match="the reasoner's own problems"):
        trace_readings.asked_by(ITEM, problem("easy", "test", 4).prompt.encode())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path_factory.mktemp("stores") / "small"))


def told(store: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert trace_readings.main([str(store), *arguments]) == 0
    return capsys.readouterr().out


def test_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its counts are those of plain expressions over its texts."""
    document = json.loads(told(store, capsys, "--json"))
    cells: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in Study.open(store).samples([]).samples:
        cells.setdefault((sample.backend, sample.budget, sample.penalty), []).append(sample)
    rows = [row for row in document["rows"] if "all" not in (row["dataset"], row["backend"])]
    assert len(rows) == len(cells)
    for row in rows:
        texts = cells[row["backend"], row["budget"], row["penalty"]]
        assert row["n"] == len(texts)
        assert row["solved"] == sum(bool(one.correct) for one in texts)
        phrases = (*words.GIVE_UP, words.NOT_KNOWN)
        gave_up = [one for one in texts if any(said in (one.text or "") for said in phrases)]
        assert row["gave_up"] == sum(one.status == "ok" and not one.correct for one in gave_up)
        assert row["tokens"] == sum(one.tokens or 0 for one in texts)
        first = last = 0
        for one in texts:
            asked = trace_readings.asked_by(one.item_id, _prompt(one))
            stated = re.findall(rf"\b{asked.goal} is (\d+)", one.text or "")
            first += stated[:1] == [asked.answer]
            last += stated[-1:] == [asked.answer]
        assert (row["first_right"], row["last_right"]) == (first, last)


def _prompt(one: Sample) -> bytes:
    level, split, index = one.item_id.split("/")
    return problem(level, split, int(index)).prompt.encode()


def test_tables_and_sentences_of_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(store, capsys, "--json", "--detector", "cycle,guardian(f=50)"))
    assert [row["detector"] for row in document["detectors"]] == ["cycle", "guardian"]
    page = told(store, capsys)
    tables = re.findall(r"(?:^\|.*\|$\n?)+", page, re.MULTILINE)
    assert len(tables) == len(trace_sentences.TABLES) + 3
    for table in tables:
        lines = table.strip().splitlines()
        assert len({line.count("|") for line in lines}) == 1
        assert len(lines) > 2
    for text in json.loads(told(store, capsys, "--json"))["sentences"].values():
        assert f"- {text}\n" in page


def test_what_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_readings.main([str(tmp_path / "none")]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.count("\n") == 1


def test_sentences_stand_above_their_counts() -> None:
    rows = [
        {
            "dataset": level,
            "backend": backend,
            "budget": budget,
            "penalty": "none",
            "role": "method",
        }
        | trace_readings.answers(group)
        | trace_readings.unsolved(group)
        | trace_readings.checks(group)
        for level, backend, budget, group in (
            ("easy", "full", None, (FULL,)),
            ("easy", "h2o", 64, (GAVE_UP, WON)),
            ("easy", "h2o", 128, (CUT, LOST, GAVE_UP)),
            ("all", "all", "all", SPARSE),
        )
    ]
    document = {
        "rows": rows,
        "kinds": {"full": trace_readings.kinds([FULL]), "sparse": trace_readings.kinds(SPARSE)},
        "excess": trace_readings.excess(SPARSE, [FULL]),
        "detectors": [{"detector": "d", "action": "stop", "fired": 0}],
    }
    found = trace_sentences.sentences(document)
    assert "d:stop" not in found
    assert found["gave_up"] == (
        "At least half of the outputs give up in 1 of 2 configurations: 1 of 2 outputs of h2o at "
        "64 on easy problems."
    )
    assert "Of 3 sparse outputs that are not solved, 1 give up" in found["unsolved"]
    assert "right in 2 of 4 sparse outputs, the last one in 2, the answer in 1: 2" in found["first"]
    assert "1 went from right to wrong, 1 from wrong to right and 0" in found["checks"]
    assert "changes 0 values" in found["full"]
    assert "(L) are 89% of the first" in found["wasted"]
    nothing = {"rows": [], "kinds": document["kinds"], "detectors": []}
    assert set(trace_sentences.sentences(nothing | {"excess": trace_readings.excess([], [])})) == {
        "read"
    }

"""Two runtimes' runs compared: what is equal, what parts, and whether it was a tie.

A stand-in with the engine's face decodes by `lil.decode`; it can be told to choose other tokens.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_runtimes
import pytest
from choice_ties import TiedChoices
from rounded_readings import READINGS, RoundedReadings
from runtime_pairs import RunPair, cost_of, counts_of, is_good, parts_at, same_keys, why
from synthetic_traces import full_pieces, trace

from experiments.grid import models
from experiments.store import manifest
from experiments.store.samples.sample import Sample
from experiments.sweep import decoder
from experiments.sweep.executors import on_vllm, vllm_limits


class OtherEngine:
    """An engine's face over `lil.decode`.

    Attributes:
        decoded: rows so far.
        wrong: the step at which it chooses another token than the likeliest; None for never.
    """

    decoded = 0
    wrong: int | None = None

    def __init__(self, model: on_vllm.ServedModel, backend: Any) -> None:
        self.backend, self.place = backend, {"engine": "a stand-in"}
        self._loaded = models.load(model.source, "float32", "cpu")

    def decode(self, job: decoder.DecodeJob, rows: Any, together: int) -> Iterator[Any]:
        some = dataclasses.replace(job, requests=tuple(job.requests[row] for row in rows))
        for event in decoder.decode(self._loaded, some, lambda _: None):
            if isinstance(event, decoder.RowTrace):
                OtherEngine.decoded += 1
                event = self._changed(event)
                yield dataclasses.replace(event, index=rows[event.index], rows=together)

    def _changed(self, event: decoder.RowTrace) -> decoder.RowTrace:
        if self.wrong is None:
            return event
        ids = list(event.trace.new_ids)
        ids[self.wrong] = (ids[self.wrong] + 1) % 64
        changed = dataclasses.replace(event.trace, new_ids=tuple(ids))
        return dataclasses.replace(event, trace=changed)

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The stand-in in the engine's place."""
    monkeypatch.setattr(on_vllm, "VLLMEngine", OtherEngine)
    monkeypatch.setattr(vllm_limits, "require_installed", lambda: None)
    monkeypatch.setattr(manifest, "runtime", lambda name: f"{name} 1")
    monkeypatch.setattr(OtherEngine, "decoded", 0)
    return monkeypatch


def compared(
    capsys: pytest.CaptureFixture[str], *typed: object, problems: int = 2
) -> tuple[int, dict[str, Any]]:
    small = ("--problems", problems, "--max-new-tokens", 60, "--methods", "full,quest(page=32)")
    code = check_runtimes.main([*map(str, (*typed, *small)), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


@pytest.mark.slow
def test_equal_rows_are_told_and_not_decoded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: pytest.MonkeyPatch
) -> None:
    del engine
    code, told = compared(capsys, tmp_path)
    assert code == 0
    assert [one["equal"] for one in told["counts"].values()] == [2, 2]
    assert {one["kind"] for one in told["pairs"]} == {"equal"}
    assert OtherEngine.decoded == 4
    full, other, *_ = told["costs"]
    assert [full["runtime"], other["runtime"]] == ["transformers", "vllm"]
    assert full["tokens"] == other["tokens"] > 60
    assert other["tokens_per_second"] > 0
    assert compared(capsys, tmp_path) == (0, told)
    assert told["equal_read_again"] == {}
    _, told = compared(capsys, tmp_path, "--again", 1)
    again = told["equal_read_again"]
    assert {name: of["read"] for name, of in again.items()} == dict.fromkeys(told["counts"], 1)
    assert again["full"]["tied"] == 0
    firsts = {one["method"]: one for one in reversed(told["pairs"])}
    for name, of in again.items():
        assert (of["tokens"], of["changed"]) == (firsts[name]["tokens"] - 1, 0)
    # A problem that nobody has decoded.
    code, told = compared(capsys, tmp_path, "--compare", problems=3)
    assert code == 1
    assert [one["missing"] for one in told["counts"].values()] == [1, 1]
    assert OtherEngine.decoded == 4


@pytest.mark.slow
def test_another_token_is_no_tie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: pytest.MonkeyPatch
) -> None:
    engine.setattr(OtherEngine, "wrong", 50)
    code, told = compared(capsys, tmp_path)
    assert code == 1
    assert [one["parts"] for one in told["counts"].values()] == [2, 2]
    assert {one["tokens"] for one in told["pairs"]} == {50}
    assert all(one["gap"] > 1e-2 for one in told["pairs"])
    # Nor is it one that other last bits would give.
    assert {(one["readings"]["mine"], one["readings"]["theirs"]) for one in told["pairs"]} == {
        (READINGS, 0)
    }
    # Had some readings been followed by the other, rounding would have decided.
    both = RoundedReadings(READINGS, 15, 1, 0)
    with engine.context() as patched:
        patched.setattr(check_runtimes, "rounded_readings", lambda *_: both)
        code, told = compared(capsys, tmp_path, "--compare")
        assert code == 0
        assert [one["other rounding"] for one in told["counts"].values()] == [2, 2]
        assert {one["choices"] for one in told["pairs"]} == {None}
    # Had both been as likely, it would have been a tie.
    engine.setattr(check_runtimes, "TIE", 1e9)
    code, told = compared(capsys, tmp_path, "--compare")
    assert code == 0
    assert [one["score tie"] for one in told["counts"].values()] == [2, 2]


def test_outputs_part_where_a_token_differs() -> None:
    one = trace(full_pieces(0), {}, None)
    assert parts_at(one, one) is None
    ids = list(one.new_ids)
    ids[7] += 1
    other = dataclasses.replace(one, new_ids=tuple(ids))
    assert parts_at(one, other) == parts_at(other, one) == 7
    # Cut earlier: equal as far as it goes, and what it read is another matter.
    cut = dataclasses.replace(one, new_ids=one.new_ids[:5], finish="length", keys_read_mean=1.0)
    assert parts_at(one, cut) is None
    assert same_keys(one, cut)
    assert same_keys(one, dataclasses.replace(one, keys_read_mean=30.0 + 1e-9))
    assert not same_keys(one, dataclasses.replace(one, keys_read_mean=30.1))
    assert not same_keys(one, dataclasses.replace(one, keys_read_max=41))


PAIR = RunPair("quest 128", "hard/0", "equal", 10, None, keys=True, answers=True)


@pytest.mark.parametrize(
    ("other", "good", "counted"),
    [
        ({}, True, "equal"),
        ({"kind": "score tie", "gap": 1e-6}, True, "score tie"),
        (
            {"kind": "other rounding", "readings": RoundedReadings(16, 15, 1, 0)},
            True,
            "other rounding",
        ),
        ({"kind": "traced choice", "choices": TiedChoices(0.0, 2, True)}, True, "traced choice"),
        (
            {"kind": "untraced choice", "choices": TiedChoices(0.0, 2, False)},
            False,
            "untraced choice",
        ),
        ({"kind": "parts", "gap": 1.0, "choices": TiedChoices(0.1, 0, False)}, False, "parts"),
        ({"kind": "missing"}, False, "missing"),
        ({"whole": False}, False, "cut"),
        ({"keys": False}, False, "other_keys"),
        ({"answers": False}, False, "other_answers"),
    ],
)
def test_only_ties_may_part(other: dict[str, Any], good: bool, counted: str) -> None:
    pairs = [PAIR, dataclasses.replace(PAIR, **other)]
    assert is_good(pairs) is good
    assert counts_of(pairs)["quest 128"][counted] == 1 + (counted == "equal")
    if counted == "parts":
        assert why(pairs[1]) == "NO TIE"
    if counted == "other rounding":
        assert why(pairs[1]) == (
            "of 16 readings with other last bits 15 have this token and 1 the other"
        )


def test_costs_are_of_all_rows_and_by_solved_problem() -> None:
    def sample(tokens: int | None, correct: bool | None) -> Sample:
        return Sample(
            *("reasoner", "hard", "0", 0, "full", (), None, "none"),
            tokens=tokens, correct=correct, prefill_sec=1.0, decode_sec=3.0, keys_read=50.0,
        )  # fmt: skip

    cost = cost_of("full", "vllm", [sample(10, True), sample(30, False), sample(None, None)])
    assert (cost.problems, cost.solved, cost.tokens) == (2, 1, 40)
    assert (cost.tokens_per_second, cost.keys_per_solved, cost.seconds_per_solved) == (5, 100, 8)
    assert cost_of("full", "vllm", [sample(10, False)]).seconds_per_solved is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--methods", "full,h2o"], "under vllm"),
        (["--compare"], "the folder of a store"),
        (["--problems", "0"], "limit = "),
        (["--again", "-1"], "again = -1"),
        (["--budgets", "0"], "budgets"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    engine: pytest.MonkeyPatch,
    typed: list[str],
    said: str,
) -> None:
    del engine
    assert check_runtimes.main([str(tmp_path / "out"), *typed]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err

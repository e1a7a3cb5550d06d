"""The page of sparse attention in vLLM shows what was measured, and says no more."""

from __future__ import annotations

import json
from typing import Any

import check_runtimes
import choice_ties
import pytest
import rounded_readings
import sparse_serving_page

import attention.methods

BUDGETS = ("128", "256")
KINDS = ("equal", "score tie", "other rounding", "traced choice")


@pytest.fixture
def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sparse_serving_page.KEPT.read_text())
    return found


def test_the_page_shows_what_was_measured() -> None:
    assert sparse_serving_page.main(["--check"]) == 0


def test_what_parts_is_explained_or_said_not_to_be(kept: dict[str, Any]) -> None:
    found = kept["runtimes"]
    assert (found["tie"], found["choice_tie"]) == (check_runtimes.TIE, choice_ties.CHOICE_TIE)
    methods = {attention.methods.METHODS.spec(one).name for one in check_runtimes.METHODS if one}
    told = {tuple(method.split(" ")) for method in found["counts"]}
    assert told == {("full",), *((name, size) for name in methods - {"full"} for size in BUDGETS)}
    for method, of in found["counts"].items():
        assert sum(of[kind] for kind in KINDS) == 200, method
        assert of["parts"] == of["missing"] == of["cut"] == 0
        assert of["other_keys"] == of["other_answers"] == 0
        # What chooses no blocks has no excuse.
        assert of["equal"] == 200 or method.startswith(("quest", "infllm"))
    for pair in found["pairs"]:
        read, choices = pair["readings"], pair["choices"]
        if pair["kind"] == "score tie":
            assert pair["gap"] < found["tie"]
        elif pair["kind"] == "other rounding":
            assert read["readings"] == rounded_readings.READINGS
            assert min(read["mine"], read["theirs"]) >= 1
        else:
            assert pair["kind"] == "traced choice"
            assert min(read["mine"], read["theirs"]) == 0
            assert choices["traced"]
            assert choices["closest"] <= found["choice_tie"]
    # Readings that decided everywhere would explain anything: they decide next to nothing.
    again = found["equal_read_again"]
    assert {of["read"] for of in again.values()} == {5}
    assert sum(of["changed"] for of in again.values()) < 1e-3 * sum(
        of["tokens"] for of in again.values()
    )
    assert found["last_bit"] == rounded_readings.LAST_BIT
    page = " ".join(sparse_serving_page.PAGE.read_text().split())
    assert f"score alike to {found['tie']:.0e}".replace("e-0", "e-") in page
    assert found["choice_tie"] == 1e-6
    assert "to one part in a million" in page
    assert f"with the first {choice_ties.TRIED} ways" in page
    assert f"the same method, {rounded_readings.READINGS} times" in page
    assert f"left out below {sparse_serving_page.FEWEST} solved" in page


def test_nothing_was_lost_under_churn(kept: dict[str, Any]) -> None:
    cells = {(one["attention"].partition("(")[0], one["prefix_caching"]) for one in kept["churn"]}
    assert cells == {(name, shared) for name in ("quest", "sink") for shared in (True, False)}
    for one in kept["churn"]:
        assert (one["requests"], one["lost"], one["left"], one["troubles"]) == (10_000, 0, 0, [])
        assert one["aborted"] > 500
        assert one["put_back"] > 1000


def test_a_measurement_of_churn_takes_the_place_of_the_same_one() -> None:
    tables = {"the runner's batch": 0}
    each = {"free": 9, "tables": tables, "put_back_with_room": 1, "put_back_without": 2}
    told = {
        "attention": "window(budget=64)", "prefix_caching": True, "growth_mib": 1.0, "free": 9,
        "troubles": [], "rounds": [each | {"requests": 5, "aborted": 1, "free": 7},
                                   each | {"requests": 9, "aborted": 2, "tables": {"a": 3}}],
    }  # fmt: skip
    text = f"words\n{json.dumps(told)}\n"
    one = sparse_serving_page.taken("churn", text, [])
    assert one == [
        {"attention": "window(budget=64)", "prefix_caching": True, "growth_mib": 1.0,
         "troubles": [], "requests": 9, "aborted": 2, "put_back": 3, "lost": 2, "left": 3}
    ]  # fmt: skip
    assert sparse_serving_page.taken("churn", text, one) == one
    other = [one[0] | {"prefix_caching": False}]
    assert len(sparse_serving_page.taken("churn", text, other)) == 2


def row(runtime: str, policy: str, times: float, faster_in: int) -> dict[str, Any]:
    return {
        "runtime": runtime, "policy": policy, "rows": 16, "context": 2048, "step_ms": 3.0,
        "times_full": times, "of_bound": 0.5, "faster_in": faster_in, "turns": 7,
        "keys_read": 1024, "blocks_held": None if runtime == "lil" else 32,
    }  # fmt: skip


def test_faster_is_said_of_what_is_faster_in_every_turn() -> None:
    engine = [row("vllm", "full", 1.0, 0), row("vllm", "sink", 5.0, 7)]
    ours = [row("lil", name, 2.0, 7) for name in sparse_serving_page.POLICIES]
    some = [*engine, row("vllm", "quest", 2.0, 6), *ours]
    other = [*engine, row("vllm", "quest", 0.5, 0), *ours]
    shape = {"layers": 1, "Hq": 32, "Hkv": 8, "D": 128}
    found = {
        "rows": {"a": some, "b": other}, "shapes": {"a": shape, "b": shape | {"layers": 5}},
        "block": 32, "device": "d", "threads": 2, "vllm": "0", "torch": "0",
        "bandwidth_bytes_per_s": 3e10,
    }  # fmt: skip
    told = sparse_serving_page.steps(found)
    assert "`sink` is faster in every turn in 2 of 2 cases, by 5.0 to 5.0 times" in told
    assert "`quest` is faster in every turn in 0 of 2 cases" in told
    assert "slower in every turn in 1, down to 0.50 times as fast" in told
    assert "5 layers, 32 query and 8 KV heads of 128" in told


def test_what_parts_is_counted_and_a_cost_of_few_solved_is_not_told() -> None:
    kinds = (*KINDS, "untraced choice", "parts")
    cost = {
        "method": "quest 128", "problems": 200, "solved": 19, "tokens_per_second": 1000.0,
        "keys_per_solved": 123456.0, "seconds_per_solved": 98.76,
    }  # fmt: skip
    some = dict(zip(kinds, (180, 4, 5, 3, 2, 1), strict=True)) | {"tokens": 9}
    found = {
        "counts": {"quest 128": some},
        "costs": [cost | {"runtime": name} for name in ("transformers", "vllm")],
        "pairs": [
            {"kind": kind, "readings": {"readings": 16, "mine": 16 - theirs, "theirs": theirs}}
            for kind, theirs in (("other rounding", 3), ("other rounding", 9), ("parts", 0))
        ],
        "equal_read_again": {
            "full": {"read": 20, "tied": 0, "tokens": 3000, "changed": 0},
            "quest 128": {"read": 20, "tied": 6, "tokens": 4000, "changed": 2},
        },
    }
    told = sparse_serving_page.runtimes(found)
    assert "| quest 128 | 180 | 4 | 5 | 3 | 3 | 9 |" in told
    assert "vLLM's is the likeliest in 3 to 9 of 16 readings" in told
    assert (
        "first 20 equal outputs of each method: in the place of 2 of 7,000 tokens one of the "
        "readings has another (2 of 4,000 under quest 128); a choice of blocks at a tie is in "
        "some (6 of 20 under quest 128)." in told
    )
    assert "98.76" not in told
    for one in found["costs"]:
        one["solved"] = 20
    assert "| 123,456 | 123,456 | 98.76 | 98.76 |" in sparse_serving_page.runtimes(found)


def test_what_a_gpu_showed_is_right(kept: dict[str, Any]) -> None:
    found = kept["checked"]
    assert found["cases"]["failed"] == found["waited"] == 0
    assert found["sums"]["wrong_tables"] == 0
    assert max(found["error"], found["error_in_full"]) <= 1
    assert found["compared_by"] == ["triton"]
    assert found["cases"]["all"] == 48 == 6 * 2 * 2 * 2


def test_what_is_said_of_steps_on_a_gpu_holds(kept: dict[str, Any]) -> None:
    found = kept["paged"]
    rows = [row for some in found["rows"].values() for row in some]
    assert not [row for row in rows if "skipped" in row]
    assert {row["compared_by"] for row in rows if row["policy"] in ("quest", "infllm")} == {
        "triton"
    }
    for row in rows:
        if row["policy"] not in ("quest", "infllm"):
            continue
        assert row["rows"] > 1 or max(row["times_full"], row["host_times_full"]) < 1
    for name, some in found["rows"].items():
        for row in some:
            if row["compared_by"] and row["rows"] >= 16 and row["context"] == 131_072:
                assert row["faster_in"] == row["turns"]
                assert (row["host_times_full"] > 1) == (name == "wide")
    page = " ".join(sparse_serving_page.PAGE.read_text().split())
    assert f"a layer with a budget of {found['budget']:,} tokens" in page


def test_a_gpus_steps_are_told_with_and_without_the_host() -> None:
    def one(policy: str, times: float, host: float, faster_in: int) -> dict[str, Any]:
        chooses = policy == "quest"
        return {
            "policy": policy, "rows": 1, "context": 2048, "step_ms": 0.5, "host_ms": 0.7,
            "launch_ms": 0.2, "times_full": times, "host_times_full": host,
            "captured_times_full": 1.5 * times,
            "plan_ms": None if policy == "full" else 0.4, "faster_in": faster_in, "turns": 7,
            "compared_by": "triton" if chooses else None,
        }  # fmt: skip

    some = [one("full", 1.0, 1.0, 0), one("sink", 3.0, 0.8, 7), one("quest", 0.4, 0.2, 0)]
    given = {
        "rows": {"wide": some}, "shapes": {"wide": {"Hkv": 8, "G": 4, "D": 128}},
        "policies": dict.fromkeys(("full", "sink", "quest")), "device": "d", "torch": "2",
        "kernel": "k", "vllm": "0", "triton": "3", "dtype": "bfloat16", "block": 16,
        "bandwidth_bytes_per_s": 4.26543e12,
    }  # fmt: skip
    kept = sparse_serving_page.taken("paged", f"words\n{json.dumps(given)}\n", None)
    assert kept["bandwidth_bytes_per_s"] == 4.265e12
    told = sparse_serving_page.paged(kept)
    shape = "1 layer, 32 query and 8 KV heads of 128"
    assert f"| {shape} | 1 | 2,048 | 0.500 (0.700) | 3.00 (0.80) | 0.40 (0.20) |" in told
    assert "`sink` is faster in every turn in 1 of 1 cases, by 3.0 to 3.0 times" in told
    assert "under `sink` in 0 of 1 cases; `quest` in 0 of 1 cases." in told
    assert "full attention of one row in 0.20 to 0.20 ms" in told
    assert "chooses blocks takes 0.7 to 0.7 ms" in told
    assert "1.50 to 1.50 times those on the device alone" in told
    assert "k of vLLM 0 on d, torch 2, triton 3; bfloat16" in told


def test_what_was_wrong_on_a_gpu_is_counted() -> None:
    def case(policy: str, **other: Any) -> str:
        return json.dumps(
            {"policy": policy, "dtype": "float16", "heads": {"Hkv": 2}, "block": 16,
             "decode_queries": 10, "wrong_tables": 1, "choices": 7, "choices_that_differ": 2,
             "steps_that_may_not_wait": 5, "largest_error": 0.1, "bar": 0.2, "waited": False,
             "largest_error_in_full": 0.3, "bar_in_full": 0.2, "compared_by": None} | other
        )  # fmt: skip

    broken = {"policy": "window", "dtype": "float16", "heads": {"Hkv": 2}, "block": 32,
              "failed": True, "reason": "RuntimeError: no"}  # fmt: skip
    last = {"cases": 3, "failed": 2, "device": "d", "kernel": "k", "torch": "2", "triton": "3"}
    lines = [case("sink"), case("quest", waited="it did", compared_by="torch")]
    lines += [json.dumps(one) for one in (broken, last | {"vllm": "0"})]
    text = "\n".join(lines)
    told = sparse_serving_page.checked(sparse_serving_page.taken("checked", text, None))
    assert "1 of 3 cases pass: 3 policies, float16, 1 shapes, blocks of 16 and 32." in told
    assert "20 decode queries: 2 tables" in told
    assert "of 14 choices of blocks, 4 are others" in told
    assert "up to 0.50 of what is allowed" in told
    assert "in full, 1.50" in told
    assert "- 10 steps of the layer" in told
    assert "it did in 1 cases" in told
    assert "k of vLLM 0 on d, torch 2, triton 3; blocks were compared by torch." in told

"""`check_paged_flash.py` and `sparse_flash.py` over the stand-in, and what the check has to see."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import check_paged_flash
import pytest
import torch
from torch import Tensor

from lil.serving.blocks import plans
from lil.serving.blocks.policy import BlockPolicy
from lil.serving.blocks.sink import SinkBlocks

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "bench" / "serving"))
import paged_layers
import sparse_flash

HERE = ("--device", "cpu", "--stand-in")
CASE = check_paged_flash.Case("quest", "float32", check_paged_flash.HEADS[0], 16)
KERNEL = paged_layers.kernel_of(stand_in=True)


def found(policy: str = "quest", kernel: Callable[..., Any] = KERNEL) -> dict[str, Any]:
    return check_paged_flash.checked(replace(CASE, policy=policy), kernel, "cpu", 1)


def test_every_case_passes_over_the_stand_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_paged_flash.main([*HERE, "--quick"]) == 0
    *cases, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (last["cases"], last["failed"], last["kernel"]) == (6, 0, "stand-in")
    assert last["torch"] == torch.__version__
    assert [one["policy"] for one in cases] == list(check_paged_flash.policies(16))
    for one in cases:
        assert one["decode_queries"] >= 50
        assert one["largest_error"] <= one["bar"] < 1e-5
        assert one["largest_error_in_full"] <= one["bar_in_full"] < 1e-5
        assert one["waited"] is None
        choosing = one["policy"] not in ("sink", "window")
        assert (one["choices"] >= one["decode_queries"]) == choosing
        assert one["compared_by"] == ("torch" if choosing else None)


@pytest.mark.parametrize("policy", ["window", "quest", "infllm"])
def test_a_kernel_that_reads_other_blocks_is_seen(policy: str) -> None:
    def shifted(**told: Any) -> Any:
        return KERNEL(**told | {"block_table": told["block_table"].roll(1, 1)})

    one = found(policy, shifted)
    assert one["failed"]
    assert one["largest_error"] > 100 * one["bar"]
    assert one["wrong_tables"] == 0


@pytest.mark.parametrize("policy", ["sink", "quest", "infllm, heads"])
def test_one_token_too_few_is_seen_in_half_precision(policy: str) -> None:
    """The bar of numbers that are rounded much is still below what a token is worth."""

    def run(dropped: int) -> dict[str, Any]:
        def kernel(**told: Any) -> None:
            single = {name: told[name].float() for name in ("q", "k", "v")}
            single["out"] = torch.empty(told["out"].shape)
            if told["max_seqlen_q"] == 1:
                left = told["window_size"][0]
                left = told["max_seqlen_k"] - 1 if left < 0 else left
                single["window_size"] = [left - dropped, 0]
            KERNEL(**told | single)
            told["out"].copy_(single["out"])

        case = replace(CASE, policy=policy, dtype="bfloat16")
        return check_paged_flash.checked(case, kernel, "cpu", 1)

    right, wrong = run(0), run(1)
    assert not right["failed"], right
    assert right["largest_error"] < 0.5 * right["bar"]
    assert wrong["failed"]
    assert wrong["largest_error"] > wrong["bar"]


def test_a_table_with_another_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is right about a table that is not."""
    monkeypatch.setattr(SinkBlocks, "window", property(lambda self: self.method.budget - 1))
    one = found("sink")
    assert one["failed"]
    assert one["wrong_tables"] > 0
    assert one["largest_error"] <= one["bar"]


def test_a_choice_of_worse_blocks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_best(worth: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, index = worth.sort(dim=-1, descending=True)
        finite = values[..., k : k + 1].isfinite()
        last = torch.where(finite, index[..., k : k + 1], index[..., k - 1 : k])
        return values[..., :k], torch.cat((index[..., : k - 1], last), dim=-1)

    monkeypatch.setattr(plans, "top", second_best)
    one = found("quest")
    assert one["failed"]
    assert one["wrong_choices"] > 0.5 * one["choices_that_differ"] > 0
    assert one["wrong_tables"] == 0
    assert one["largest_error"] <= one["bar"]


def test_a_case_that_breaks_off_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(BlockPolicy, "tokens_listed", broken)
    one = found("window")
    assert one["failed"]
    assert one["reason"] == "RuntimeError: no such kernel"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("main", [check_paged_flash.main, sparse_flash.main])
def test_without_a_device_it_says_so(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no CUDA device" in said.err


def test_a_package_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(paged_layers.MissingError, match=r"no package vllm\.vllm_flash_attn"):
        paged_layers.kernel_of(stand_in=False)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--rows", "2", "0"), "rows = 0: expected an integer of at least 1"),
        (("--contexts", "-5"), "contexts = -5: expected an integer of at least 1"),
        (("--turns", "0"), "turns = 0: expected an integer of at least 1"),
        (("--budget", "0"), "budget = 0: expected"),
        (("--budget", "20"), "budget"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    typed: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sparse_flash.main([*HERE, *typed]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


def test_the_bench_over_the_stand_in(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--shapes", "reasoner", "--contexts", "256", "128", "--rows", "1", "2", "90"]
    more = ["--turns", "3", "--budget", "128", "--gib", "0.01"]
    assert sparse_flash.main([*HERE, *given, *more]) == 0
    (last,) = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert (told["kernel"], told["dtype"], told["budget"]) == ("stand-in", "float32", 128)
    assert told["bandwidth_bytes_per_s"] > 0
    rows = told["rows"]["reasoner"]
    measured = [one for one in rows if "skipped" not in one]
    assert [(one["rows"], one["policy"]) for one in measured] == [
        (count, name) for count in (1, 2) for name in sparse_flash.policies(128)
    ]
    for one in measured:
        full = one["policy"] == "full"
        assert all(one[name] > 0 for name in ("step_ms", "host_ms", "launch_ms", "of_bound"))
        assert (one["plan_ms"] is None) == full
        assert one["captured_ms"] == "no CUDA device"
        assert one["captured_times_full"] is None
        assert one["times_full"] == 1 if full else one["times_full"] > 0
        assert 0 <= one["faster_in"] <= one["turns"] == 3
        assert one["keys_read"] == (256 if full else 128)
        remembered = {"quest": 15 * 2 * 64, "infllm": 11 * 64}.get(one["policy"], 0)
        assert one["bytes"] == one["rows"] * 2 * 4 * (one["keys_read"] * 2 * 64 + remembered)
    left_out = [(one["rows"], one["context"]) for one in rows if "skipped" in one]
    assert left_out == [(90, 256), (1, 128), (2, 128), (90, 128)]

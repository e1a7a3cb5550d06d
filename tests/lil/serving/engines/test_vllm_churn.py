"""`scripts/checks/check_vllm_churn.py`: what it says of few requests, and of engines that lose.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import check_vllm_churn
from check_vllm_churn import IdleState, growth, troubles

pytestmark = pytest.mark.slow

#: While so few requests are served memory still grows: kernels for new shapes, and buffers. Six of
#: them at once do not fit in so few blocks.
FEW = ["--requests", "60", "--every", "12", "--blocks", "24", "--growth", "1000", "--json"]


def churned(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = check_vllm_churn.main([*FEW, *more])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, told


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--no-prefix-caching", "--attention", 'sink(budget=96, sinks=32, positions="absolute")'),
    ],
)
def test_nothing_is_lost(capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    code, told = churned(capsys, *more)
    assert told["troubles"] == []
    assert code == 0
    assert [one["requests"] for one in told["rounds"]] == [12, 24, 36, 48, 60]
    last = told["rounds"][-1]
    assert last["aborted"] > 0
    assert last["put_back_without"] > 0
    assert last["put_back_with_room"] == 0
    assert last["ended"] + last["aborted"] == 60
    assert (last["summaries"] > 0) == (not more)


def test_what_is_lost_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is not told of ends, and an engine whose last block stays with nobody."""
    from vllm.v1.core.block_pool import BlockPool

    from lil.serving.vllm.sparse.rows import ReadLog

    given = BlockPool.free_blocks

    def freed(self: Any, blocks: Any) -> None:
        kept = list(blocks)
        given(self, kept[:-1] if len(kept) > 4 else kept)

    monkeypatch.setattr(ReadLog, "end", lambda _self, _names: None)
    monkeypatch.setattr(BlockPool, "free_blocks", freed)
    code, told = churned(capsys, "--blocks", "400")
    assert code == 1
    said = " ".join(told["troubles"])
    assert "blocks are free, not 399" in said
    assert "are left in the pool's blocks in use" in said
    assert "are left in the worker's counts" in said
    assert "the runner's requests" not in said
    # So many blocks are enough for all.
    assert "no request was put back" in said


STATE = IdleState(
    requests=10, aborted=2, ended=8, put_back_with_room=0, put_back_without=3, free=9,
    summaries=64, resident=100.0, tables={"the worker's counts": 0}, seconds=1.0,
)  # fmt: skip


def at(rounds: int, **other: Any) -> list[IdleState]:
    """As many rounds in which nothing is lost, the last with something else about it."""
    states = [
        replace(STATE, requests=10 * one, aborted=2 * one, ended=8 * one)
        for one in range(1, rounds + 1)
    ]
    return [*states[:-1], replace(states[-1], **other)]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"free": 8}, "8 blocks are free, not 9"),
        ({"tables": {"the worker's counts": 3}}, "3 are left in the worker's counts"),
        ({"ended": 39}, "39 have ended and 10 were aborted"),
        ({"summaries": 65}, "65 bytes are remembered of blocks, not 64"),
        ({"resident": 103.0}, "memory grew by 3.0 MiB, more than 2"),
        ({"aborted": 0, "ended": 50}, "no request was aborted"),
        ({"put_back_without": 0}, "no request was put back"),
    ],
)
def test_each_loss_is_a_sentence(other: dict[str, Any], said: str) -> None:
    assert troubles(9, at(5), 2.0) == []
    (told,) = troubles(9, at(5, **other), 2.0)
    assert said in told


def test_memory_is_compared_from_a_fifth_on() -> None:
    early = [replace(one, resident=100.0 + (one.requests > 10) * 7) for one in at(10)]
    assert growth(early) == 0.0
    late = [replace(one, resident=100.0 + (one.requests > 20) * 7) for one in at(10)]
    assert growth(late) == 7.0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--every", "100", "--requests", "499"], "expected at least 500"),
        (["--growth", "0"], "above 0"),
        (["--blocks", "1"], "at least 2"),
        (["--attention", "h2o(budget=64)"], "one of infllm, quest, sink, window"),
        (["--blocks", "4"], ""),
    ],
)
def test_bad_input_is_refused(
    capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    try:
        code = check_vllm_churn.main(typed)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err

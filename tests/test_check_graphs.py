"""`scripts/checks/check_graphs.py`, on a CPU with the stand-in for CUDA graphs."""

from __future__ import annotations

import check_graphs
import pytest

from attention.patching import graphed
from tests.graphs import on_a_cpu


@pytest.mark.slow
def test_all_cases_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(check_graphs.cases())) > 40
    with on_a_cpu():
        assert check_graphs.main(["--device", "cpu"]) == 0
    first, _second = capsys.readouterr().out.splitlines()
    same, _, total = first.partition(" cases, ")[2].split()[:3]
    assert same == total


def test_what_differs_or_fails_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = check_graphs.cases()
    monkeypatch.setattr(check_graphs, "cases", lambda: [first, last])
    attend = graphed._Attention.run

    def wrong(self: graphed._Attention, rows: int) -> None:
        attend(self, rows)
        if rows == 3:
            self.out.mul_(-1)

    monkeypatch.setattr(graphed._Attention, "run", wrong)
    with on_a_cpu():
        assert check_graphs.main(["--device", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(", ")[2][:8] for line in lines if line.startswith("WRONG: torch.fl")]
    assert any("full 0: " in line and "differ" in line for line in lines)
    monkeypatch.setattr(graphed.CudaGraphs, "__init__", lambda *_: None)
    monkeypatch.setitem(graphed.GRAPHS, "cpu", graphed.CudaGraphs)
    assert check_graphs.main(["--device", "cpu", "--quick"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("WRONG: torch.float32, full 0: CompileWarning: steps are not")


def test_no_gpu_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check_graphs.main(["--device", "cuda:77"])
    assert ended.value.code == 2
    assert "cuda:77" in capsys.readouterr().err

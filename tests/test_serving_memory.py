"""What the page on serving says of memory is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import check_server_memory
import pytest

DOCS = Path(__file__).parents[1] / "docs"


def test_ours_add_nothing_that_grows_with_requests() -> None:
    found = json.loads((DOCS / "serving_memory.json").read_text())
    ours, plain = (check_server_memory.growth(found[name]) for name in ("ours", "plain"))
    assert ours < plain
    half, last = (found["ours"][at]["requests"] for at in (check_server_memory.ROUNDS // 2, -1))
    page = " ".join((DOCS / "serving.md").read_text().split())
    assert f"over {last:,} short requests over HTTP" in page
    assert f"by {ours:.0f} MiB from the {half:,}th on, without ours by {plain:.0f}" in page


def test_values_differ_from_one_request_to_the_next() -> None:
    asked = [check_server_memory.asked(at) for at in range(600)]
    assert asked.count(None) == 100
    assert len({json.dumps(one) for one in asked}) > 250


@pytest.mark.parametrize("typed", ["--requests 3", "--at-once 0"])
def test_too_few_are_refused_before_anything_is_started(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        check_server_memory.main(typed.split())
    assert ended.value.code == 2
    assert f"{typed}: expected at least" in capsys.readouterr().err

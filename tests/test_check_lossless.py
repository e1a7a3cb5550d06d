"""Lossless decoding over many prompts, by the script that prints the counts."""

from __future__ import annotations

import json
from typing import Any

import check_lossless
import pytest


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(one) for one in capsys.readouterr().out.splitlines()]


def test_texts_and_draws_are_full_attentions(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--prompts", "3", "--max-new-tokens", "30", "--draws", "2000", "--only", "h2o"]
    assert check_lossless.main(given) == 0
    *texts, drawn = lines(capsys)
    assert len(texts) == len(check_lossless.CELLS["h2o"]) * len(check_lossless.DRAFTS)
    assert all(one["same"] == one["prompts"] == 3 for one in texts)
    assert drawn["refused"] > 100  # what is held against chance has been through both ways
    assert drawn["kept"] > 100


def test_another_distribution_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another temperature the counts are not those of the probabilities at 1."""
    decode = check_lossless.lil.decode
    monkeypatch.setattr(
        check_lossless.lil, "decode", lambda *a, **given: decode(*a, **given | {"temperature": 1.3})
    )
    parameters = {"budget": 8, "page": 4, "dense_layers": 0}
    assert check_lossless.draws(3000, "quest", **parameters)["p"] < check_lossless.CHANCE


@pytest.mark.slow
def test_many_draws(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--prompts", "1", "--max-new-tokens", "2", "--draws", "20000", "--only", "quest"]
    assert check_lossless.main(given) == 0
    assert lines(capsys)[-1]["draws"] == 20_000

"""The bench of lossless decoding: texts are full attention's, and keys are counted right."""

from __future__ import annotations

import json

import lossless_speed
import pytest

from experiments.reasoner import checkpoint_path

SMALL = ["--contexts", "200", "--tokens", "12", "--repeats", "1", "--budget", "64"]


def test_rows_are_of_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(checkpoint_path()), *SMALL, "--backends", "quest,sink", "--drafts", "3", "--json"]
    assert lossless_speed.main(given) == 0
    full, quest, sink = json.loads(capsys.readouterr().out)["rows"]
    assert (full["keys"], full["seconds"], full["kept"]) == (1.0, 1.0, None)
    for row in (quest, sink):
        assert row["same"] == row["tokens"] == full["tokens"] == 12
        assert 0 < row["kept"] <= 1
        # A round of one check and three drafts of 64 keys gives one to four tokens.
        assert (200 + 3 * 64) / 4 / 220 < row["keys"] < (220 + 4 * 64) / 200


@pytest.mark.parametrize("contexts", ["9999", "99999999"])
def test_what_does_not_fit_is_one_message(
    contexts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lossless_speed.main([str(checkpoint_path()), "--contexts", contexts]) == 2
    assert "contexts" in capsys.readouterr().err

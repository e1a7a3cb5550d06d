"""The preset of the paper from end to end, on the real data's texts, with tiny random models."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from paper_end_to_end import FILES, configured, faults, save_models, swept

from experiments.cli import main

PUBLIC = Path(os.environ.get("LIL_PUBLIC_DATA", "not given"))


@pytest.mark.slow
@pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason="LIL_PUBLIC_DATA names no folder with copies of the public data sets",
)
def test_three_families_on_three_data_sets(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = save_models(tmp_path / "models")
    # Every prompt and 40 tokens together are shorter than 2,048.
    config = configured(models, PUBLIC, 2, 40, budgets="128,2048", batch_size=6)
    out = tmp_path / "store"
    found = swept(config, out)
    assert len(found.samples) == 3 * 3 * (1 + 4 * 2) * 2
    assert faults(found.samples, 2048) == []
    assert swept(config, out).decoded == 0
    capfd.readouterr()
    assert main(["report", str(out), "--no-figures", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    plain = [row for row in rows if row["detector"] == "none"]
    assert {row["dataset"] for row in plain} == {name.removesuffix(".jsonl") for name in FILES}
    assert len(plain) == 3 * 3 * 9
    for row in plain:
        if row["budget"] == 2048:
            # Full attention again, or nothing to say where every pair was cut.
            assert row["length_ratio"] in (1.0, None)
            assert row["accuracy_change"] == 0.0
    # What is looked for can be found.
    (one,) = [s for s in found.samples if s.budget == 128 and s.backend == "h2o"][:1]
    assert len(faults([*found.samples, dataclasses.replace(one, keys_read_max=129)], 2048)) == 1
    assert len(faults([*found.samples, dataclasses.replace(one, status="error")], 2048)) == 1
    (same,) = [s for s in found.samples if s.budget == 2048 and s.backend == "h2o"][:1]
    assert len(faults([*found.samples, dataclasses.replace(same, text="other")], 2048)) == 1

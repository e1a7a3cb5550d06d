"""What comes from outside, brought to its type: values of a configuration, files of a store."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.grid.presets import load
from experiments.store.files.records import pack
from experiments.store.store import Store

NINES = "9" * 5000


UNUSABLE: dict[str, list[object]] = {
    "limit": [NINES, 10**400, 2.5, 0, True],
    "budgets": ["1" + "0" * 400, [64, True], "32,x"],
    "temperature": ["1e400", 10**400, math.nan, -1],
    "top_p": [math.inf, 0, "nan"],
    "threads": [100_000],
    "cap": [NINES, "2y-full", "0"],
    "dtype": ["flaot32"],
    "seed": [2**63, -1],
    "split": ["sutdy"],
    "backends": [""],
    "penalty_params": [{"lz": {"alpha": math.nan}}, {"lz": {"alpha": {1, 2}}}, {"lz": 3}],
    "backend_params": [5, {"quest": 3}],
    "models": [[3], ["", "x"]],
}


@pytest.mark.parametrize("key", UNUSABLE)
def test_values_no_sweep_can_use_are_refused(key: str) -> None:
    for value in UNUSABLE[key]:
        with pytest.raises(InvalidValue, match=f"^{key} = ") as caught:
            load("demo", {key: value})
        assert len(str(caught.value)) < 400


SMALL = Path(__file__).parent / "data" / "small"


def test_a_record_of_another_version_is_named_and_skipped(tmp_path: Path) -> None:
    record = next(record for record in Store(SMALL) if record.meta["detector"] is None)
    meta, trace = dict(record.meta), record.values()
    changes = [({"item_id": 3}, {}), ({"status": "new"}, {}), ({}, {"pieces": 5}), ({}, {"x": 1})]
    for number, (of_meta, of_trace) in enumerate([({}, {}), *changes]):
        path = tmp_path / str(number) / "traces" / "1.zst"
        path.parent.mkdir(parents=True)
        path.write_bytes(pack("00" * 16, meta | of_meta, trace | of_trace))
        store = Store(tmp_path / str(number))
        assert len(store) + len(store.notices) == 1
        assert len(store) == (number == 0)
        for notice in store.notices:
            assert "of another version" in notice
            assert "00" * 16 in notice

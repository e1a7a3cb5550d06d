"""What comes from outside, brought to its type: values of a configuration, files of a store."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid.presets import load
from experiments.store.files.records import pack
from experiments.store.store import Store

NINES = "9" * 5000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", NINES),
        ("limit", 10**400),
        ("limit", 2.5),
        ("budgets", "1" + "0" * 400),
        ("budgets", [64, True]),
        ("temperature", "1e400"),
        ("temperature", 10**400),
        ("temperature", math.nan),
        ("top_p", math.inf),
        ("threads", 100_000),
        ("cap", NINES),
        ("seed", 2**63),
        ("penalty_params", {"lz": {"alpha": math.nan}}),
        ("penalty_params", {"lz": {"alpha": {1, 2}}}),
        ("penalty_params", {"lz": 3}),
        ("backend_params", 5),
        ("models", [3]),
    ],
)
def test_a_value_no_sweep_can_use_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{key} = ") as caught:
        load("demo", {key: value})
    assert len(str(caught.value)) < 400


SMALL = Path(__file__).parent / "data" / "small"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"plan": {}, "config": {}}, "status"),
        ([], "an object|object"),
        ("{", "JSON"),
        ("[" * 3000, "JSON"),
    ],
)
def test_what_is_no_manifest_is_one_message(
    document: object, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(SMALL / "traces", store / "traces")
    text = document if isinstance(document, str) else json.dumps(document)
    (store / "sweeps").mkdir()
    (store / "sweeps" / "1.json").write_text(text)
    assert main(["report", str(store)]) == 2
    printed, errors = capfd.readouterr()
    assert (printed, errors.count("\n")) == ("", 1)
    assert errors.startswith("lil: error: ")
    assert re.search(words, errors)
    assert str(store) in errors


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

"""Damaged stores and random settings: a clean result or `InvalidValue`, never anything else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import build_backends, build_penalties
from experiments.grid.presets import load
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"
QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

#: What may be done to a file: cut, flip, lose or repeat bytes.
Damage = tuple[str, float, float]
damage = st.tuples(
    st.sampled_from(["cut", "flip", "lose", "repeat"]), st.floats(0, 1), st.floats(0, 0.2)
)


def damaged(data: bytes, how: Damage) -> bytes:
    kind, start, share = how
    at = int(start * len(data))
    end = min(len(data), at + 1 + int(share * len(data)))
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        return data[:at] + bytes(byte ^ 0x55 for byte in data[at:end]) + data[end:]
    return data[:at] + (data[at:end] * 2 if kind == "repeat" else b"") + data[end:]


@QUICK
@given(st.lists(damage, min_size=1, max_size=3))
def test_damaged_records(tmp_path_factory: Any, changes: list[Damage]) -> None:
    """Every run that is still read is the run that was written; the others are missing."""
    whole = {record.id: record.values()["new_ids"] for record in Store(SMALL) if not record.failed}
    store = shutil.copytree(
        SMALL, tmp_path_factory.mktemp("store") / "s", ignore=shutil.ignore_patterns("cache")
    )
    (file, *_) = sorted((store / "traces").glob("*.zst"))
    data = file.read_bytes()
    for how in changes:
        data = damaged(data, how)
    file.write_bytes(data)
    read = Store(store)
    for record in read:
        if not record.failed:
            assert record.values()["new_ids"] == whole[record.id]
    if len(read) < len(Store(SMALL)):
        assert read.notices or not data  # what is lost is named, unless the file ends before it


# JSON of any shape, and values that are near to those of a manifest.
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
json_values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [path, *(p for key in value for p in paths(value[key], (*path, key)))]
    if isinstance(value, list):
        return [path, *(p for at, item in enumerate(value[:3]) for p in paths(item, (*path, at)))]
    return [path]


DOCUMENT = json.loads(manifest.paths(SMALL)[0].read_text())


@settings(QUICK, max_examples=15)
@given(st.sampled_from([path for path in paths(DOCUMENT) if path]), json_values)
def test_changed_manifests(tmp_path_factory: Any, path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    store = tmp_path_factory.mktemp("store")
    (store / "sweeps").mkdir()
    (store / "traces").symlink_to(SMALL / "traces")
    (store / "sweeps" / "20260101T000000Z-000001.json").write_text(json.dumps(document))
    try:
        study = Study.open(store)
        assert isinstance(study.warnings, list)
        study.samples(study.detectors)
    except InvalidValue as error:
        assert len(str(error)) < 2000  # noqa: PT017


KEYS = list(Config.__dataclass_fields__)
texts = st.sampled_from(
    [
        "",
        "none",
        "auto",
        "64",
        "0",
        "-1",
        "1e400",
        "guardian(f=",
        "quest(page=8)",
        "a:b",
        "h2o,sink",
    ]
) | st.text(max_size=12)


@QUICK
@given(st.dictionaries(st.sampled_from(KEYS), texts | json_values, max_size=4))
def test_random_settings(values: dict[str, Any]) -> None:
    try:
        config = load("demo-small", values)
        build_backends(config), build_penalties(config), build_detectors(config)
    except InvalidValue as error:
        assert len(str(error)) < 2000  # noqa: PT017
    else:
        assert load("demo-small", config.to_dict()) == config

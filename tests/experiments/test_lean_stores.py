"""A lean file gives its store back, seconds on straight lines, and a strange file gives none."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import lean_checks
import lean_stores
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli import main as lil
from experiments.store.store import Store


@pytest.fixture(scope="module")
def decoded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of several methods, one with its own dense layers, one with an action, and a failure."""
    out = tmp_path_factory.mktemp("decoded") / "out"
    asked = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    asked += ["--limit", "2", "--backend", "full,h2o,quest,random", "--budget", "16"]
    asked += ["--max-new-tokens", "120", "--cap", "120", "--no-figures", "--no-page"]
    asked += ["--detector", "budget(tokens=12):answer", "--out", str(out)]
    assert lil(asked) == 0
    with Store(out) as opened:
        some = next(iter(opened))
        failed = dict(some.meta) | {"status": "failed", "message": "no memory", "tokens": 0}
        opened.append("0" * 32, failed, None)
    return out


@pytest.fixture
def store(decoded: Path, tmp_path: Path) -> Path:
    """A copy of those."""
    return Path(shutil.copytree(decoded, tmp_path / "out"))


def runs(store: Path) -> dict[str, Any]:
    with Store(store) as opened:
        return {one.id: (dict(one.meta), None if one.failed else one.values()) for one in opened}


def test_all_but_seconds_comes_back(store: Path, tmp_path: Path) -> None:
    file, again = tmp_path / "lean" / "store.xz", tmp_path / "again"
    assert lean_stores.main(["pack", str(store), str(file)]) == 0
    assert lean_stores.main(["unpack", str(file), str(again)]) == 0
    before, after = runs(store), runs(again)
    assert before.keys() == after.keys()
    assert any(trace and trace["action"] for _, trace in before.values())
    for name, (meta, trace) in before.items():
        expected = None if trace is None else lean_checks.rounded(trace)
        assert after[name] == (meta, json.loads(json.dumps(expected)))
        for old, new in zip(trace["checks"], expected["checks"], strict=True) if trace else ():
            assert {**old, "seconds": 0} == {**new, "seconds": 0}
        if trace:
            ends = [side["checks"][-1]["seconds"] for side in (trace, expected)]
            assert abs(ends[0] - ends[1]) <= 0.5 * 10**-lean_checks.DECIMALS + 1e-12
    sweeps = [sorted((one / "sweeps").glob("*.json")) for one in (store, again)]
    assert [one.read_text() for one in sweeps[0]] == [one.read_text() for one in sweeps[1]]
    twice = tmp_path / "twice.xz"
    assert lean_stores.main(["pack", str(again), str(twice)]) == 0
    assert twice.read_bytes() == file.read_bytes()
    assert lean_stores.main(["unpack", str(file), str(again)]) == 2  # nothing is written over


def test_a_store_that_grew_is_packed_in_two_files(store: Path, tmp_path: Path) -> None:
    first, second, both = (tmp_path / name for name in ("first.xz", "second.xz", "both"))
    lean_stores.pack(store, first)
    before = runs(store)
    config = next((store / "sweeps").glob("*.json"))
    (store / "sweeps" / "99999999T000000Z-0000000.json").write_text(config.read_text())
    with Store(store) as opened:
        some = next(one for one in opened if not one.failed)
        meta = dict(some.meta) | {"sample_index": 1}
        opened.append("1" * 32, meta, some.values())
    asked = ["pack", str(store), str(second), "--beside", str(first)]
    assert lean_stores.main(asked) == 0
    assert lean_stores.main(["unpack", str(first), str(second), str(both)]) == 0
    assert runs(both).keys() == before.keys() | {"1" * 32}
    assert len([*(both / "sweeps").iterdir()]) == 2
    alone = tmp_path / "alone"
    assert lean_stores.unpack([second], alone) == 1


def test_texts_with_a_penalty_are_told_from_where_they_part(
    store: Path, tiny_model: Path, tmp_path: Path
) -> None:
    first, second, both = (tmp_path / name for name in ("first.xz", "second.xz", "both"))
    lean_stores.pack(store, first)
    asked = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    asked += ["--limit", "3", "--backend", "full,h2o,quest,random", "--budget", "16"]
    asked += ["--max-new-tokens", "120", "--cap", "120", "--no-figures", "--no-page"]
    asked += ["--penalty", "lz", "--detector", "none", "--out", str(store)]
    assert lil(asked) == 0
    assert lean_stores.main(["pack", str(store), str(second), "--beside", str(first)]) == 0
    assert lean_stores.main(["unpack", str(first), str(second), str(both)]) == 0
    before, after = runs(store), runs(both)
    assert before.keys() == after.keys()
    for name, (meta, trace) in before.items():
        told = None if trace is None else json.loads(json.dumps(lean_checks.rounded(trace)))
        assert after[name] == (meta, told)
    lean = msgspec.msgpack.decode(lzma.decompress(second.read_bytes()), type=lean_stores.Lean)
    like = [one for one in lean.columns["like"].told() if one != lean_stores.ABSENT]
    assert len(like) == 2 * 4  # of the third problem there is no older text
    assert max(like) > 0
    # Without the older file, or behind it, nobody knows how they begin.
    for files in ([second], [second, first]):
        gone = tmp_path / "gone"
        assert lean_stores.main(["unpack", *map(str, files), str(gone)]) == 2
        assert not gone.exists()


def test_what_follows_is_left_out(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "store.xz"
    lean_stores.pack(store, file)
    columns = msgspec.msgpack.decode(lzma.decompress(file.read_bytes()))["columns"]
    assert not {"trace.pieces", "trace.new_ids", "meta.prompt"} & columns.keys()
    for name in ("curve", "keys_read_mean", "decode_sec"):
        told = columns[f"trace.{name}"]["values"] if f"trace.{name}" in columns else []
        assert len(told) < len(runs(store)), name


@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=40),
    st.lists(st.one_of(st.floats(0, 1e9), st.integers(0, 10**9)), min_size=1, max_size=40),
)
def test_numbers_of_any_kind(seconds: list[float], values: list[float]) -> None:
    count = min(len(seconds), len(values))
    checks = [
        {"tokens": 50 * at + 50, "keys_read": values[at], "cache_bytes": 1.0,
         "seconds": sum(seconds[: at + 1]), "read_sum": values[at] / 3, "dense_read_sum": None}
        for at in range(count)
    ]  # fmt: skip
    trace = {"checks": checks, "decode_sec": checks[-1]["seconds"], "prefill_sec": 0.0}
    expected = lean_checks.rounded(trace)
    assert lean_checks.rounded(expected) == expected
    told = lean_checks.told_checks(expected["checks"])
    assert lean_checks.checks_of(told) == expected["checks"]


@pytest.fixture(scope="module")
def packed(decoded: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("packed") / "store.xz"
    lean_stores.pack(decoded, file)
    return file.read_bytes()


@pytest.mark.parametrize("damage", ["torn", "text", "foreign", "name", "longer", "fewer", "none"])
def test_a_strange_file_is_refused_and_nothing_written(
    damage: str, packed: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "store.xz", tmp_path / "target"
    data = packed
    file.write_bytes(data)
    found = msgspec.msgpack.decode(lzma.decompress(data))
    if damage == "name":
        found["sweeps"][0][0] = "../up.json"
    elif damage == "fewer":
        found["tokens"] = found["tokens"][:-40]
    elif damage == "longer":
        found["columns"]["new"]["values"].append(3)
        found["columns"]["new"]["at"] = None
    again = lzma.compress(msgspec.msgpack.encode(found), preset=0)
    written = {"torn": data[:-40], "text": b"no file", "foreign": lzma.compress(b"[]")}
    if damage != "none":
        file.write_bytes(written.get(damage, again))
    assert lean_stores.main(["unpack", str(file), str(target)]) == (0 if damage == "none" else 2)
    assert target.exists() == (damage == "none")
    assert "lean_stores.py pack" in capsys.readouterr().err or damage == "none"


def test_a_folder_without_sweeps_is_refused(tmp_path: Path) -> None:
    assert lean_stores.main(["pack", str(tmp_path), str(tmp_path / "x.xz")]) == 2
    assert lean_stores.main(["unpack", str(tmp_path / "x.xz"), str(tmp_path / "y")]) == 2

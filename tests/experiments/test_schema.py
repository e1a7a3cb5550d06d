"""What comes from outside, brought to its type: values of a configuration, files of a store."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def test_numbers_may_be_typed_as_texts() -> None:
    config = load("demo", {"limit": "7", "top_p": "0.5", "budgets": "32, 64,32", "threads": "2"})
    assert (config.limit, config.top_p, config.budgets, config.threads) == (7, 0.5, (32, 64), 2)


# ---------------------------------------------------------------- files of a store

SMALL = Path(__file__).parent / "data" / "small"
ODD = (None, True, -1, 1.5, "x", [], {}, [None], {"name": 3}, 10**30)


def _places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, inside in pairs:
        yield from _places(inside, (*path, key))


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy in which `change(container, key)` was done at a place."""
    copy = value.copy()
    if len(path) == 1:
        change(copy, path[0])
    else:
        copy[path[0]] = _changed(value[path[0]], path[1:], change)
    return copy


def _put(new: object) -> Callable[[Any, Any], None]:
    return lambda container, key: container.__setitem__(key, new)


def _drop(container: Any, key: Any) -> None:
    del container[key]


def _flip(container: Any, key: Any) -> None:
    """One letter of a name or a text turned."""
    if isinstance(container, dict):
        container[f"{key[:-1]}{key[-1].swapcase() if key[-1].isalpha() else 'x'}"] = container.pop(
            key
        )
    elif isinstance(container[key], str):
        container[key] = container[key].swapcase()


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
    printed, said = capfd.readouterr()
    assert (printed, said.count("\n")) == ("", 1)
    assert said.startswith("lil: error: ")
    assert re.search(words, said)
    assert str(store) in said


def _store_of(folder: Path, meta: Any, trace: Any) -> Store:
    path = folder / "traces" / "1.zst"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack("00" * 16, meta, trace))
    return Store(folder)


def test_a_record_of_another_version_is_named_and_skipped(tmp_path: Path) -> None:
    record = next(one for one in Store(SMALL) if one.meta["detector"] is None)
    meta, trace = dict(record.meta), record.values()
    sound = _store_of(tmp_path, meta, trace)
    assert (len(sound), sound.notices) == (1, [])
    skipped = 0
    for which, values in (("meta", meta), ("trace", trace)):
        places = [path for path in _places(values) if path]
        rng = random.Random(1)
        for path in rng.sample(places, min(100, len(places))):
            for change in (_drop, _flip, _put(rng.choice(ODD))):
                changed = _changed(values, path, change)
                store = _store_of(
                    tmp_path, *((changed, trace) if which == "meta" else (meta, changed))
                )
                for one in store:
                    assert isinstance(one.trace().text, str)
                    assert one.covers_cap(5) in (True, False)
                assert len(store) + len(store.notices) == 1
                skipped += len(store.notices)
                for notice in store.notices:
                    assert "of another version" in notice
                    assert "00" * 16 in notice
    assert skipped > 150

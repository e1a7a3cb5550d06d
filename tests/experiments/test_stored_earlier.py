"""A store written by the first version: read, reported and replayed with the numbers it had then.

`data/small` is a sweep of demo-small over 4 problems: full, h2o and quest at 64 tokens, with
penalty lz, and Guardian with every action, cycle and the chopper at work; beside it, the rows that
`lil report --json` and `lil replay --json` gave for it: the names of the fields, then one row a
line.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.grid.plan import (
    SHIPPED_CHOPPERS,
    as_of_then,
    build_detectors,
    describe_backend,
    describe_penalties,
)
from experiments.store.study import Study
from lil import Chopper

#: Measures that are seconds, or are made of them.
SECONDS = (
    *("prefill_sec", "decode_sec", "end_to_end_sec", "end_to_end_ratio", "cache_byte_sec"),
    *("cache_byte_sec_ratio", "sec_per_solved", "sec_per_solved_ratio"),
)

SMALL = Path(__file__).parent / "data" / "small"
REPLAY = "--detector guardian,budget,chopper --set guardian.f=20,50 --set guardian.rate=0.3,0.5"
COLUMNS = (
    "model,dataset,item_id,sample_index,backend,backend_params,budget,penalty,detector,action,"
    "status,finish,message,text,tokens,correct,stopped_at,prefill_sec,decode_sec,keys_read,"
    "keys_kept_max,keys_read_mean,keys_read_max,dense_layer_keys_read_mean,cache_bytes_peak,"
    "cache_byte_sec,curve,repeated,reused_tokens,dropped_tokens,sweep,batch_size,workers,record,"
    "wasted_loop,wasted_tail,role,output,shorter,at_positions"
)

GONE = {"break_even", "break_even_budget"}  # `cheaper` says more


def test_every_run_has_the_identity_it_was_stored_under() -> None:
    study = Study.open(SMALL)
    planned = {run.id for run in study.runs()}
    stored = {record.id: record.meta["detector"] for record in study.store}
    assert study.store.notices == []
    assert planned == {id_ for id_, detector in stored.items() if detector is None}
    assert (len(planned), len(stored)) == (24, 34)


def test_every_cell_gives_back_its_backend_and_its_penalties() -> None:
    study = Study.open(SMALL)
    for cell in study.plan.cells:
        assert describe_backend(study.backend(cell)) == cell.backend
        assert describe_penalties(study.penalties(cell)) == cell.penalties


@pytest.mark.parametrize(
    ("noun", "options"), [("report", ""), ("replay", f"{REPLAY} --set budget.tokens=100")]
)
def test_the_numbers_are_those_of_then(
    noun: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "small"
    shutil.copytree(SMALL, store)
    asked = ["--no-figures", "--no-page", "--csv", str(tmp_path / "samples.csv")]
    names = asked if noun == "report" else []
    assert main([noun, str(store), "--json", *options.split(), *names]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    keys, *then = map(json.loads, (SMALL / f"{noun}.jsonl").read_text().splitlines())
    assert len(rows) == len(then) >= 40
    assert sum(row["fired"] for row in rows) > 10
    assert all("not known" in row["seconds_null_why"] for row in rows)
    for row, values in zip(rows, then, strict=True):
        assert set(keys) - set(row) == GONE
        for key, value in zip(keys, values, strict=True):
            if key in GONE:
                continue
            if key in SECONDS:  # in which sweep and batches they were measured was not kept
                assert row[key] is None
                continue
            same = row[key] == value or row[key] == pytest.approx(value, rel=1e-9)
            assert same, (key, row[key], value)
    if names:
        with (tmp_path / "samples.csv").open() as file:
            header, *lines = csv.reader(file)
        assert ",".join(header) == COLUMNS
        assert len(lines) == sum(row["samples"] for row in rows)


def test_a_store_is_read_with_the_chopper_that_shipped_then() -> None:
    study = Study.open(SMALL)
    assert study.config.detector_params["chopper"]["weights"].endswith(":chopper.safetensors")
    plain = as_of_then(study.config, ())
    assert plain is study.config  # what is given stays
    asked = replace(study.config, detector_params={})
    (now,) = (one for one in build_detectors(asked) if one.name == "chopper")
    assert isinstance(now, Chopper)
    assert now.params()["weights"] == SHIPPED_CHOPPERS["reasoner"]
    assert (
        as_of_then(asked, now.signals).detector_params["chopper"]["weights"]
        == (SHIPPED_CHOPPERS["reasoner"])
    )
    assert as_of_then(asked, {"chopper-of-somebody"}) is asked

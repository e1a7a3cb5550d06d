"""Full attention beside itself, caps of several samples, and reading at smaller caps: in sweeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweeping import go

from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.plan import build_backends, null_of
from experiments.report.measures import finding, rows
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

Make = Callable[..., Config]

#: Of the tiny model: texts of one problem of very different lengths.
SAMPLED = {"temperature": 1.0, "samples_per_problem": 3, "detectors": "none", "limit": 3}


def _study(config: Config, out: Path) -> tuple[Study, list[Sample]]:
    go(config, out)
    study = Study.open(out)
    return study, study.samples([], texts=False).samples


def test_with_sampling_a_null_is_made_by_itself(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config(**SAMPLED, backends="full,h2o", budgets="32", max_new_tokens=60)
    _, samples = _study(config, tmp_path)
    null = [one for one in samples if one.role == "null"]
    full = {one.pair: one for one in samples if one.backend == "full"}
    assert len(null) == len(full) == 9
    assert {one.backend for one in null} == {"full again"}
    assert any(one.output != full[one.pair].output for one in null)
    found = rows(samples, seed=0, factor=2)
    (row,) = [row for row in found if row.role == "null"]
    assert row.pairs == 9
    assert row.pairs_same < 9
    assert "The null, full attention beside itself (full again)" in finding(found)
    # The same texts as full attention's with the next seed, known by them and not decoded again.
    other, notes = go(replace(config, seed=1, backends=("full",), null="none"), tmp_path)
    assert notes.stored == 9
    assert other.counts.decoded == 0


def test_under_greedy_decoding_in_float32_there_is_none_unless_asked_for(tiny_config: Make) -> None:
    assert null_of(tiny_config()) == "none"
    assert null_of(tiny_config(dtype="bfloat16")) == "noise"
    assert null_of(tiny_config(temperature=0.5)) == "seed"
    assert null_of(tiny_config(temperature=0.5, null="none")) == "none"
    assert [one.name for one in build_backends(tiny_config(null="noise"))].count("noise") == 1
    with pytest.raises(InvalidValue, match="no seed is used"):
        tiny_config(null="seed")


def test_a_problem_has_one_cap_for_all_its_samples(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config(**SAMPLED, backends="full,h2o", budgets="32", max_new_tokens=300)
    study, samples = _study(config, tmp_path)
    longest: dict[str, int] = defaultdict(int)
    cut = set()
    for one in samples:
        if one.backend == "full":
            longest[one.item_id] = max(longest[one.item_id], one.tokens or 0)
            cut |= {one.item_id} if one.status == "capped" else set()
    assert len(cut) < len(longest)
    seen = 0
    for run in study.runs():
        if not run.configuration.is_full:
            most = 300 if run.item_id in cut else 2 * longest[run.item_id]
            assert study.cap(run) == most
            seen += run.item_id not in cut
    assert seen >= 6
    for one in samples:
        if one.backend != "full":
            assert (one.tokens or 0) <= (300 if one.item_id in cut else 2 * longest[one.item_id])


def test_a_cap_that_is_a_number_holds_for_both_sides(tiny_config: Make, tmp_path: Path) -> None:
    config = tiny_config(cap="9", detectors="none", backends="full,h2o", budgets="32")
    _, samples = _study(config, tmp_path)
    assert max(one.tokens or 0 for one in samples) == 9
    (row,) = [row for row in rows(samples, seed=0, factor=None) if row.backend == "h2o"]
    cut = sum(one.status == "capped" for one in samples if one.backend == "full")
    assert row.pairs_censored == cut > 0


def test_a_longer_cap_is_read_at_shorter_ones_as_a_sweep_of_those(
    tiny_config: Make, tmp_path: Path
) -> None:
    config = tiny_config(**SAMPLED, backends="full,h2o", budgets="32", max_new_tokens=100)
    _, whole = _study(replace(config, cap="8x-full"), tmp_path / "8")
    found = rows(whole, seed=0, factor=8)
    for at, factor in enumerate((2, 4)):
        _, short = _study(replace(config, cap=f"{factor}x-full"), tmp_path / str(factor))
        for row, other in zip(found, rows(short, seed=0, factor=factor), strict=True):
            cap = row.caps[at]
            assert (row.backend, cap.factor) == (other.backend, factor)
            for name in ("capped", "accuracy", "length_ratio", "length_ratio_solved", "claims",
                         "keys_read_per_solved_ratio", "accuracy_change",
                         "length_ratio_of_sums"):  # fmt: skip
                assert getattr(cap, name) == getattr(other, name), name


def test_backends_may_have_a_budget_of_their_own(tiny_config: Make) -> None:
    backends = build_backends(tiny_config(backends="full,h2o,oracle(budget=16)", budgets="32,64"))
    told = [(one.name, one.budget) for one in backends]
    assert told == [("full", None), ("h2o", 32), ("h2o", 64), ("oracle", 16)]

"""Sweeps on a Ray cluster of two nodes on this machine, one of which is killed at work."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import Notes, prepare
from test_parallel_sweeps import _config, alone, run, whole
from test_sweep import tokens_of

from attention.errors import InvalidValue
from experiments.store import manifest

__all__ = ["alone"]  # a fixture

ROOT = Path(__file__).parents[2]

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the package ray"
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and another node, each with room for one worker."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # nodes started from here look there
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


class Saboteur(Notes):
    """Kills a node after so many runs."""

    def __init__(self, cluster: Any, runs: int) -> None:
        super().__init__()
        self._cluster, self._runs = cluster, runs

    def run_done(self, weight: float) -> None:
        super().run_done(weight)
        if self.done_runs == self._runs:
            node = next(n for n in self._cluster.list_all_nodes() if not n.head)
            self._cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
@needs_ray
def test_a_node_that_dies_at_work_costs_nothing(
    cluster: Any, alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    options = {"executor": "ray", "address": cluster.address, "workers": 2, "batch_size": 4}
    config = _config(tiny_model, **options)
    outcome, notes = run(config, tmp_path, Saboteur(cluster, 8))
    whole(tmp_path)
    assert tokens_of(tmp_path) == tokens_of(alone)
    assert outcome.counts.decoded == notes.done_runs == 30
    values = manifest.read(tmp_path)
    assert (values["executor"], values["device"], values["threads"]) == ("ray", "cpu", 1)
    again, _ = run(config, tmp_path)
    assert (again.counts.decoded, again.counts.stored_before) == (0, 30)


@pytest.mark.slow
@needs_ray
def test_a_cluster_that_is_not_there_is_said(tiny_model: Path, tmp_path: Path) -> None:
    options = {"executor": "ray", "address": "127.0.0.1:1", "limit": 1}
    with pytest.raises(InvalidValue, match=r"address = '127\.0\.0\.1:1'"):
        run(_config(tiny_model, **options), tmp_path)


def test_without_ray_one_message_says_what_to_install(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)  # as if it were not installed
    with pytest.raises(InvalidValue, match=r"executor = 'ray': .*`scripts/setup ray`"):
        prepare(_config(tiny_model, executor="ray"), tmp_path / "out")
    assert not (tmp_path / "out").exists()

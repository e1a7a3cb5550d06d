"""The further backends and options against their naive oracles, as `test_oracle_logits.py` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from oracles.compare import TOLERANCE, Case, decisive, difference
from oracles.grid import further_grid, further_sample, further_ties

import attention


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(case: Case) -> None:
    found = difference(case, attention.get)
    assert found.first is None, f"{case} seed {case.seed}: {found.first}"
    assert found.logits <= TOLERANCE[case.dtype], (
        f"{case} seed {case.seed}: logits differ by {found.logits:.1e} at step {found.step}"
    )


@pytest.mark.parametrize("case", further_sample(), ids=str)
def test_backend_is_its_oracle(case: Case) -> None:
    check(decisive(case)[0])


@pytest.mark.parametrize("case", further_ties(), ids=str)
def test_ties_fall_as_in_the_oracle(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", further_grid(), ids=str)
def test_backend_is_its_oracle_on_the_whole_grid(case: Case) -> None:
    check(decisive(case)[0])

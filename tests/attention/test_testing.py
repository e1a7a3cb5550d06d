"""The checks for authors: shipped backends pass them, and a broken method is named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from examples import FIRST

import attention
from attention.testing import ContractBroken, check

#: Checks that controls break on purpose: they weigh or read what a method must not.
BROKEN_ON_PURPOSE = {"noise": ["softmax", "prefill"]}


@pytest.mark.parametrize("backend", FIRST, ids=str)
def test_every_shipped_method_keeps_the_contract(backend: attention.Backend) -> None:
    assert all(check(backend, skip=BROKEN_ON_PURPOSE.get(backend.name, ())).values())


@dataclass(frozen=True, kw_only=True)
class TooSure(attention.Window):
    exact_until = 20


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ContractBroken, match="'exact': exact_until = 20, but after token 16"):
        check(TooSure(budget=16), skip=["declared"])
    with pytest.raises(ContractBroken, match="keep_prompt"):
        check(attention.RaaS(budget=16, page=4))
    with pytest.raises(attention.InvalidValue, match="did you mean 'exact'"):
        check(attention.Full(), skip=["exactt"])

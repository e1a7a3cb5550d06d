"""Checks that a new method keeps the contract of `attention`, for tests in other packages too.

from attention.testing import check
check(MyMethod(budget=16))

Nothing here is imported by the library itself.
"""

from attention.testing.broken import ContractBroken
from attention.testing.checks import CHECKS, check
from attention.testing.driving import OneLayer, tiny_model

__all__ = ["CHECKS", "ContractBroken", "OneLayer", "check", "tiny_model"]

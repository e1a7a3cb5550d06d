"""Checks that a new detector, penalty or codec keeps the contract of `lil`, for other packages too.

from lil.testing import check
check(MyDetector(tokens=40))

Nothing here is imported by the library itself.
"""

from attention.testing import ContractBroken
from lil.testing.checks import CHECKS, check

__all__ = ["CHECKS", "ContractBroken", "check"]

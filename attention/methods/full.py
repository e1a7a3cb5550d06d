"""Full attention, stored without copies: the base of all others, so it stands beside them."""

from attention.contract.backend import Full

__all__ = ["Full"]

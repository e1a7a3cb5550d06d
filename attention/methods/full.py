"""Full attention, stored without copies: the base of all others, so it stands beside them."""

from attention.contract import Full

__all__ = ["Full"]

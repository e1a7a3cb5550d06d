"""Full attention, stored without copies; the class is in `attention.contract`."""

from attention.contract import Full

__all__ = ["Full"]

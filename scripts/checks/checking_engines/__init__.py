"""Engines against an oracle: what is looked at, how, and whether kernels compile."""

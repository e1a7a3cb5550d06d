"""Tokens a second of the decode loop beside other ways to generate the same tokens."""

from experiments.bench.peers.compare import peers

__all__ = ["peers"]

"""Sparse attention by the blocks of an engine's cache: which blocks a query reads.

Methods are those of `attention`, with their parameters; what cannot be done by whole blocks is
refused by name. Nothing here knows an engine.
"""

"""Sparse attention by the blocks of an engine's cache: which blocks a query reads.

Methods are those of `attention`, with their parameters; what cannot be done by whole blocks is
refused by name. Nothing here knows an engine.
"""

from lil.serving.blocks.layers import PAGE, FlashLayer, SparseLayer
from lil.serving.blocks.plans import WHOLE, Queries, ReadPlan, StepReads, queries, table
from lil.serving.blocks.policies import POLICIES, BlockPolicy, Mask, policy_of
from lil.serving.blocks.reads import ReadCounts, Reads
from lil.serving.blocks.ropes import RopeTable
from lil.serving.blocks.summaries import Summaries

__all__ = [
    "PAGE",
    "POLICIES",
    "WHOLE",
    "BlockPolicy",
    "FlashLayer",
    "Mask",
    "Queries",
    "ReadCounts",
    "ReadPlan",
    "Reads",
    "RopeTable",
    "SparseLayer",
    "StepReads",
    "Summaries",
    "policy_of",
    "queries",
    "table",
]

"""Sparse attention by the blocks of an engine's cache, for any engine: which blocks a query reads.

Methods are those of `attention`, with their parameters; what cannot be done by whole blocks is
refused by name. Nothing here knows an engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from attention.errors import InvalidValue
from attention.methods import METHODS
from lil.serving.blocks.flash import PAGE, FlashLayer
from lil.serving.blocks.infllm import InfLLMBlocks
from lil.serving.blocks.layers import SparseLayer
from lil.serving.blocks.plans import ReadPlan, StepReads
from lil.serving.blocks.policy import BlockPolicy, Mask
from lil.serving.blocks.quest import QuestBlocks
from lil.serving.blocks.reads import ReadCounts, Reads
from lil.serving.blocks.ropes import RopeTable
from lil.serving.blocks.sink import SinkBlocks
from lil.serving.blocks.steps import WHOLE, Queries, in_full_rows, queries, table
from lil.serving.blocks.summaries import Summaries
from lil.serving.blocks.window import WindowBlocks

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
    "in_full_rows",
    "policy_of",
    "queries",
    "table",
]

POLICIES: Mapping[str, type[BlockPolicy]] = {
    kind.kind.name: kind for kind in (InfLLMBlocks, QuestBlocks, SinkBlocks, WindowBlocks)
}

#: The parameter that is the engine's block where nothing else is said.
_GRAIN = {"quest": "page", "infllm": "block"}


def policy_of(text: object, block: int) -> BlockPolicy:
    """The policy that somebody types, `quest(budget=1024)`.

    Quest's `page` and InfLLM's `block` are the engine's where they are not given; all else has the
    defaults of the method.

    Args:
        text: as the command line takes backends.
        block: tokens of a block of the engine.

    Raises:
        InvalidValue: an unknown method or parameter, or one that cannot be kept by whole blocks.
    """
    if not isinstance(text, str):
        allowed = "a method with its parameters, such as 'quest(budget=1024)'"
        raise InvalidValue("attention", text, allowed)
    spec = METHODS.spec(text, "attention")
    if spec.name not in POLICIES:
        raise InvalidValue("attention", spec.name, f"one of {', '.join(POLICIES)}", list(POLICIES))
    grain = _GRAIN.get(spec.name)
    params = {**({grain: block} if grain else {}), **spec.params}
    return POLICIES[spec.name](METHODS.get(spec.name, **params), block)

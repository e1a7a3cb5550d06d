"""Penalties change the raw scores of a sequence before its next token is chosen; one file each.

`get(name, ...)` finds those of other packages too, by entry point or `module:Class`.
"""

from __future__ import annotations

from attention.registry import Registry
from lil.penalties._history import Penalty, ScoreChange, StatefulPenalty, working_dtype
from lil.penalties._lz_rows import LZRows
from lil.penalties.dry import DRYPenalty
from lil.penalties.frequency import FrequencyPenalty
from lil.penalties.lz import LZPenalty
from lil.penalties.no_repeat_ngram import NoRepeatNGramPenalty
from lil.penalties.presence import PresencePenalty
from lil.penalties.presence_window import PresenceWindowPenalty
from lil.penalties.repetition import RepetitionPenalty

__all__ = [
    "PENALTIES",
    "DRYPenalty",
    "FrequencyPenalty",
    "LZPenalty",
    "LZRows",
    "NoRepeatNGramPenalty",
    "Penalty",
    "PresencePenalty",
    "PresenceWindowPenalty",
    "RepetitionPenalty",
    "ScoreChange",
    "StatefulPenalty",
    "describe",
    "find",
    "get",
    "known",
    "names",
    "working_dtype",
]

PENALTIES: Registry[Penalty] = Registry(
    "penalty",
    (__name__,),
    "lil.penalties",
    lambda: Penalty,
    example="repetition(penalty=1.2)",
)
names, get, find = PENALTIES.names, PENALTIES.get, PENALTIES.find
known, describe = PENALTIES.known, PENALTIES.describe

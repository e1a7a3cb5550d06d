"""Penalties change the raw scores of a sequence before its next token is chosen; one file each.

`get(name, ...)` finds those of other packages too, by entry point or `module:Class`.
"""

from __future__ import annotations

from attention.registry import Registry
from lil.penalties._history import Penalty as Penalty
from lil.penalties._history import ScoreChange as ScoreChange
from lil.penalties._history import StatefulPenalty as StatefulPenalty
from lil.penalties._history import padded as padded
from lil.penalties._history import working_dtype as working_dtype
from lil.penalties._lz_rows import LZRows as LZRows
from lil.penalties.dry import DRYPenalty as DRYPenalty
from lil.penalties.frequency import FrequencyPenalty as FrequencyPenalty
from lil.penalties.lz import LZPenalty as LZPenalty
from lil.penalties.no_repeat_ngram import NoRepeatNGramPenalty as NoRepeatNGramPenalty
from lil.penalties.nowait import NoWaitPenalty as NoWaitPenalty
from lil.penalties.presence import PresencePenalty as PresencePenalty
from lil.penalties.presence_window import PresenceWindowPenalty as PresenceWindowPenalty
from lil.penalties.repetition import RepetitionPenalty as RepetitionPenalty

PENALTIES: Registry[Penalty] = Registry(
    "penalty",
    (__name__,),
    "lil.penalties",
    lambda: Penalty,
    example="repetition(penalty=1.2)",
)
names, get, find, known = PENALTIES.names, PENALTIES.get, PENALTIES.find, PENALTIES.known

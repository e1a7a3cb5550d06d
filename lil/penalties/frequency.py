"""OpenAI's frequency penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lil.penalties._counts import CountPenalty


@dataclass(frozen=True, kw_only=True)
class FrequencyPenalty(CountPenalty):
    """Frequency penalty: a token loses `strength` for each time it has occurred (OpenAI's API).

    As OpenAI documents it, over generated tokens; `include_prompt` adds the prompt. At a `strength`
    of 0 it changes nothing, below 0 it encourages repetition.
    """

    name: ClassVar[str] = "frequency"

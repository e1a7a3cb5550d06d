"""OpenAI's presence penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lil.penalties._counts import CountPenalty


@dataclass(frozen=True, kw_only=True)
class PresencePenalty(CountPenalty):
    """Presence penalty: a token that has occurred loses `strength`, however often (OpenAI's API).

    As OpenAI documents it, over generated tokens; `include_prompt` adds the prompt. At a `strength`
    of 0 it changes nothing, below 0 it encourages repetition.
    """

    name: ClassVar[str] = "presence"
    counted: ClassVar[float] = 1

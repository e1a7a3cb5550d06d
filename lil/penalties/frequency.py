"""OpenAI's frequency penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lil.penalties._counts import CountPenalty


@dataclass(frozen=True, kw_only=True)
class FrequencyPenalty(CountPenalty):
    """Frequency penalty: a token loses `strength` for each time it has occurred (OpenAI's API).

    As OpenAI documents it, over generated tokens; `include_prompt` adds the prompt.

    Args:
        strength: score units an occurrence; 0 changes nothing, below 0 encourages repetition.

    Raises:
        InvalidValue: `strength` is not a finite number.
    """

    name: ClassVar[str] = "frequency"

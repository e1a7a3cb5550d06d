"""SGLang's own scheduler, on a CPU: the tokens are `lil.decode`'s.

In an environment of its own, see `scripts/test_sglang`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from engine_runs import PROMPTS, answer_of, decoded

import lil
from lil.detectors import Answer
from lil.penalties import DRYPenalty, PresenceWindowPenalty

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("sglang") is None,
        reason="SGLang has an environment of its own: scripts/test_sglang",
    ),
]
TOKENS = 120


def served(requests: list[dict[str, Any]], overlap: bool) -> list[Any]:
    """Tokens of each request, and how it ended."""
    defaults = {"tokens": TOKENS, "processor": None, "values": None}
    work = {
        "overlap": overlap,
        "prompts": PROMPTS[: len(requests)],
        "requests": [defaults | request for request in requests],
    }
    ends: list[Any] = answer_of("sglang_engine.py", work, SGLANG_USE_CPU_ENGINE="1")
    return ends


STOP = {"stop_on": "budget(tokens=40)"}
ANSWER = {"stop_on": "budget(tokens=40):answer", "stop_on_tokens": 30}
#: A processor and its values, and the same of `lil.decode`.
SERVED: list[tuple[str | None, Any, dict[str, Any]]] = [
    ("LZPenalty", {"lz_alpha": 1.5}, {"penalties": [lil.LZPenalty(alpha=1.5)]}),
    ("DRYPenalty", {"dry_multiplier": 2}, {"penalties": [DRYPenalty(multiplier=2)]}),
    (
        "PresenceWindowPenalty",
        {"presence_window_strength": 20},
        {"penalties": [PresenceWindowPenalty(strength=20)]},
    ),
    (None, None, {}),
    ("StopOn", STOP, {"detectors": [lil.Budget(40)]}),
    ("StopOn", ANSWER, {"detectors": [lil.Budget(40, on_stop=Answer(tokens=30))]}),
]


def test_tokens_are_those_of_decode_and_a_wrong_value_ends_its_request_alone(
    reasoner: Any,
) -> None:
    """Side by side, more requests than places, without the overlapping schedule."""
    requests = [{"processor": kind, "values": values} for kind, values, _ in SERVED]
    requests += [
        {"processor": "StopOn", "values": {"stop_on": "guardain"}},
        {"processor": "LZPenalty", "values": {"LZ": "on"}},
    ]
    ends = served(requests, overlap=False)
    changed = 0
    for at, (*_, options) in enumerate(SERVED):
        prompt = PROMPTS[at : at + 1]
        (expected,) = decoded(reasoner, prompt, max_new_tokens=TOKENS, **options)
        assert ends[at][0] == expected
        changed += expected != decoded(reasoner, prompt, max_new_tokens=TOKENS)[0]
    assert changed > 3
    assert ends[4][1]["matched"] == "lil: budget at token 40"
    for at, message in (6, "did you mean 'guardian'"), (7, "expected lz: another spelling"):
        assert (ends[at][1]["type"], len(ends[at][0])) == ("abort", 1)
        assert message in ends[at][1]["message"]


def test_under_the_overlapping_schedule_a_stop_is_a_token_late_and_penalties_are_refused(
    reasoner: Any,
) -> None:
    requests = [
        {"processor": "StopOn", "values": STOP},
        {"processor": "LZPenalty", "values": {"lz": "on"}},
        {},
    ]
    ends = served(requests, overlap=True)
    plain = decoded(reasoner, PROMPTS[:3], max_new_tokens=TOKENS)
    assert ends[0][0][:41] == plain[0][:41]
    assert len(ends[0][0]) in (41, 42)
    assert ends[0][1]["matched"] == "lil: budget at token 40"
    assert "--disable-overlap-schedule" in ends[1][1]["message"]
    assert ends[2][0] == plain[2]

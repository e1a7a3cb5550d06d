"""SGLang's own scheduler, on a CPU: the tokens are `lil.decode`'s.

In an environment of its own, see `scripts/test_sglang`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from engine_programs import answered
from vllm_runs import PROMPTS, ours

import lil
from lil.detectors import Answer
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty

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
    prompts = PROMPTS[: len(requests)]
    asked = {
        "overlap": overlap,
        "prompts": prompts,
        "requests": [{"tokens": TOKENS, "processor": None, "values": None} | r for r in requests],
    }
    found: list[Any] = answered("sglang_engine.py", asked, SGLANG_USE_CPU_ENGINE="1")
    return found


PENALTIES: list[tuple[str, dict[str, Any], Penalty]] = [
    ("LZPenalty", {"lz_alpha": 1.5}, lil.LZPenalty(alpha=1.5)),
    (
        "LZPenalty",
        {"lz_alpha": 1.5, "lz_formula": "rate"},
        lil.LZPenalty(alpha=1.5, formula="rate"),
    ),
    ("DRYPenalty", {"dry_multiplier": 2}, DRYPenalty(multiplier=2)),
    (
        "PresenceWindowPenalty",
        {"presence_window_strength": 20},
        PresenceWindowPenalty(strength=20),
    ),
]


def test_tokens_are_those_of_decode_and_a_wrong_value_ends_its_request_alone(reasoner):
    """Side by side, more requests than places, without the overlapping schedule."""
    stop = lil.Budget(40)
    answer = lil.Budget(40, on_stop=Answer(tokens=30))
    requests: list[dict[str, Any]] = [
        {"processor": name, "values": values} for name, values, _ in PENALTIES
    ]
    requests += [
        {},
        {"processor": "StopOn", "values": {"stop_on": "budget(tokens=40)"}},
        {
            "processor": "StopOn",
            "values": {"stop_on": "budget(tokens=40):answer", "stop_on_tokens": 30},
        },
        {"processor": "StopOn", "values": {"stop_on": "guardain"}},
        {"processor": "LZPenalty", "values": {"LZ": "on"}},
    ]
    found = served(requests, overlap=False)
    options: list[dict[str, Any]] = [{"penalties": [one]} for *_, one in PENALTIES]
    options += [{}, {"detectors": [stop]}, {"detectors": [answer]}]
    changed = 0
    for at, given in enumerate(options):
        (expected,) = ours(reasoner, PROMPTS[at : at + 1], max_new_tokens=TOKENS, **given)
        assert found[at][0] == expected
        changed += expected != ours(reasoner, PROMPTS[at : at + 1], max_new_tokens=TOKENS)[0]
    assert changed > 4
    assert found[5][1]["matched"] == "lil: budget at token 40"
    for at, message in (7, "did you mean 'guardian'"), (8, "expected lz: another spelling"):
        assert (found[at][1]["type"], len(found[at][0])) == ("abort", 1)
        assert message in found[at][1]["message"]


def test_under_the_overlapping_schedule_a_stop_is_a_token_late_and_penalties_are_refused(reasoner):
    requests = [
        {"processor": "StopOn", "values": {"stop_on": "budget(tokens=40)"}},
        {"processor": "LZPenalty", "values": {"lz": "on"}},
        {},
    ]
    found = served(requests, overlap=True)
    plain = ours(reasoner, PROMPTS[:3], max_new_tokens=TOKENS)
    assert found[0][0][:41] == plain[0][:41]
    assert len(found[0][0]) in (41, 42)
    assert found[0][1]["matched"] == "lil: budget at token 40"
    assert "--disable-overlap-schedule" in found[1][1]["message"]
    assert found[2][0] == plain[2]

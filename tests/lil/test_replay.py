"""What detectors say live of hidden states and logits is what a stored trace gives again."""

from __future__ import annotations

from typing import Any

import pytest
from test_combined import of_states
from test_probes import chopper
from tiny_models import WORDS, run_in_chunks

import attention
import lil

NAMES = ("chopper", "stall", "margin", "either", "both", "either of both")


def detector(name: str, qwen: Any) -> lil.Detector:
    whole = dict(zip(NAMES[3:], of_states(), strict=True))
    whole["chopper"] = chopper(qwen)
    whole["stall"] = lil.Stall(longest=5, before=1, drift=0.0, level=1.9)
    whole["margin"] = lil.Margin(below=2.5, end=WORDS[7])
    return whole[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", [attention.Full(), attention.H2O(budget=24)], ids=str)
def test_live_is_replayed(qwen: Any, tokenizer: Any, backend: attention.Backend, name: str) -> None:
    live_detector = detector(name, qwen)
    quiet = live_detector.quiet()
    assert quiet.signals == live_detector.signals
    plain = run_in_chunks(qwen, tokenizer, backend=backend, probes=[live_detector])
    watched = run_in_chunks(qwen, tokenizer, backend=backend, detectors=[quiet])
    stopped = run_in_chunks(qwen, tokenizer, backend=backend, detectors=[live_detector])
    fired = 0
    for trace, silent, live in zip(plain, watched, stopped, strict=True):
        assert silent.new_ids == trace.new_ids
        verdict = lil.replay(lil.Trace.from_dict(trace.to_dict()), live_detector)
        if verdict is None:
            assert (live.new_ids, live.finish) == (trace.new_ids, trace.finish)
            continue
        fired += 1
        ending = (live.finish, live.tokens, live.evidence)
        assert ending == (live_detector.name, verdict.token, verdict.evidence)
        assert live.new_ids + live.dropped == trace.new_ids[: verdict.step]
        assert live.decoded_tokens == verdict.step
    assert fired > 0

"""`either` and `both`: verdicts by those of the parts, each watching alone; the whole acts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import WORDS, run_in_chunks

import lil
from tests.sampling import some_slow

parts = st.lists(
    st.one_of(
        st.integers(1, 60).map(lambda n: {"name": "budget", "tokens": n}),
        st.integers(1, 30).map(lambda f: {"name": "guardian", "f": f, "rate": 0.5}),
        st.integers(2, 4).map(
            lambda m: {"name": "cycle", "repeats": m, "min_tokens": 3, "outside": 0}
        ),
        st.integers(1, 9).map(
            lambda n: {"name": "recurrence", "k": 2, "before": 1, "run": n, "outside": 0}
        ),
    ),
    min_size=1,
    max_size=4,
)
texts = st.lists(st.sampled_from([b"a", b"b", b"c\n\n"]), max_size=70)


@given(parts, texts)
def test_the_first_and_the_last_verdict_of_the_parts(
    settings: list[dict[str, Any]], text: list[bytes]
) -> None:
    alone = [lil.detectors.get(**part).watch(b"p").update(text) for part in settings]
    came = [verdict for verdict in alone if verdict is not None]
    either, both = lil.Either(settings).watch(b"p"), lil.Both(settings).watch(b"p")
    first, last = either.update(text), both.update(text)
    assert (first is None) == (not came)
    if first is not None:
        assert first.step == min(verdict.step for verdict in came)
        assert first.evidence["part"] in {v.detector for v in came if v.step == first.step}
    assert (last is None) == (len(came) < len(alone))
    if last is not None:
        assert last.step == max(verdict.step for verdict in came)
        parts = [(part["part"], part["token"], part["step"]) for part in last.evidence["parts"]]
        assert parts == [(v.detector, v.token, v.step) for v in came]


def test_forms_of_the_parts() -> None:
    """Text, mappings, detectors and what `params` says are one."""
    text = lil.Either("recurrence + cycle")
    assert text == lil.Either([{"name": "recurrence"}, lil.Cycle()])
    assert text == lil.Either(**json.loads(json.dumps(text.params())))
    assert text != lil.Both("recurrence+cycle")
    within = lil.Both([text, lil.Budget(50)], on_stop="answer")
    assert within == lil.Both(**json.loads(json.dumps(within.params())))
    assert {part.action.name for part in within.detectors} == {"answer"}


def of_states(action: str = "stop") -> list[lil.Detector]:
    """Parts that read hidden states, logits and text."""
    stall = lil.Stall(longest=5, before=1, drift=0.0, level=7.0)
    margin = lil.Margin(below=0.9, end=WORDS[7])
    return [
        lil.Either([stall, margin], on_stop=action),
        lil.Both([stall, margin, lil.Budget(30)], on_stop=action),
        lil.Either([lil.Both([stall, lil.Budget(45)]), lil.Budget(50)], on_stop=action),
    ]


@pytest.mark.parametrize("which", some_slow(range(3), {1}))
def test_the_whole_acts(qwen, tokenizer, which):
    """The answer follows what the verdict keeps, as if the cue had stood there."""
    cue = lil.detectors.Answer(cue=" Anna", tokens=3)
    (part,) = [of_states(cue)[which]]
    stops = run_in_chunks(qwen, tokenizer, detectors=[of_states()[which]])
    acted = run_in_chunks(qwen, tokenizer, detectors=[part])
    assert part.name in {trace.finish for trace in stops}
    for stop, act in zip(stops, acted, strict=True):
        assert act.new_ids[: stop.tokens] == stop.new_ids
        # Where the cue is in the output already, the row stops instead.
        did = act.action is not None or act.finish == part.name
        assert did == (stop.finish == part.name)

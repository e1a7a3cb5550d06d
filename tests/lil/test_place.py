"""Where detectors look: the thinking where there is any, never the answer, unless told so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lil
from attention.errors import InvalidValue
from lil import detectors
from lil.trace import Trace

LOOP = [b"we ", b"try ", b"again", b".\n"] * 300
END = b"</think>"
#: Each fires upon `LOOP`, some hundred tokens in at most, where it watches it.
QUICK: dict[str, lil.Detector] = {
    "guardian": lil.Guardian(f=40),
    "cycle": lil.Cycle(outside=0),
    "recurrence": lil.Recurrence(outside=0),
    "budget": lil.Budget(90),
    "stall": lil.Stall(longest=4, before=1, drift=0.5),
    "margin": lil.Margin(below=5.0, end="#"),
    "either": lil.Either([lil.Guardian(f=40), lil.Cycle(outside=0)]),
    "both": lil.Both([lil.Budget(90), lil.Cycle(outside=0)]),
}


def watched(detector: lil.Detector, prompt: bytes = b"") -> detectors.Watcher:
    """A watcher that needs no model."""
    watcher = detector.watch(prompt)
    signal = tuple((end, 0.9) for end in range(1, 2000))
    watcher.recall(dict.fromkeys(detector.signals, signal))
    return watcher


def trace(pieces: Sequence[bytes], prompt: bytes = b"") -> Trace:
    """A trace that ended by itself."""
    return Trace(
        prompt_ids=(),
        new_ids=tuple(range(len(pieces) + 1)),
        prompt_bytes=prompt,
        pieces=(*pieces, b""),
        finish="eos",
        evidence=None,
        curve=(),
        checks=(),
        keys_kept_max=0,
        keys_read_max=None,
        keys_read_mean=None,
        dense_layer_keys_read_mean=None,
        cache_bytes_peak=0,
        prefill_sec=0.0,
        decode_sec=None,
    )


@pytest.mark.parametrize("name", sorted(QUICK))
def test_nothing_is_stopped_behind_the_end_of_thinking(name: str) -> None:
    detector = QUICK[name]
    assert watched(detector, b"<think>\n").update(LOOP) is not None
    answer = watched(detector, b"<think>\n")
    assert answer.update([b"so", END, *LOOP]) is None
    assert answer.tokens <= 1 or name in ("either", "both")
    assert list(answer.returns()) == []
    everywhere = dataclasses.replace(detector, within="output")
    assert watched(everywhere, b"<think>\n").update([b"so", END, *LOOP]) is not None
    assert watched(detector.everywhere()).update([b"so", END, *LOOP]) is not None


@pytest.mark.parametrize("name", sorted(QUICK))
def test_the_thinking_alone_begins_where_it_is_opened(name: str) -> None:
    alone = dataclasses.replace(QUICK[name], within="thinking")
    assert watched(alone).update(LOOP) is None
    assert watched(alone, b"the tags <think> and </think>: what are they?").update(LOOP) is None
    for opened in ([b"<think>"], [b"Well", b"<thi", b"nk", b">\n"], [b"[THINK]"]):
        verdict = watched(alone).update([*opened, *LOOP])
        assert verdict is not None
        assert verdict.step > len(opened)
    assert watched(alone, b"go [THINK]").update(LOOP) is not None


@pytest.mark.parametrize("name", ["guardian", "recurrence", "either"])
@pytest.mark.parametrize(
    ("prompt", "end", "fires"),
    [
        (b"", [b"</", b"think", b">"], False),
        (b"", [b".\n</think>\n\n"], False),
        (b"", [b"[/THINK]"], False),
        (b"", [b"</thin", b"g>"], True),
        (b"Tell me of <think> and </think>.\nA:", [b"so"], True),
        (b"/no_think <think>\n\n</think>\n\n", [b"so"], False),
    ],
)
def test_ends_are_known_by_their_text(
    name: str, prompt: bytes, end: list[bytes], fires: bool
) -> None:
    text = [b"so", *end, *LOOP]
    cut = watched(QUICK[name], prompt)
    for piece in text:
        cut.update([piece])
    whole = watched(QUICK[name], prompt).update(text)
    assert cut.verdict == whole
    assert (whole is not None) is fires


@given(st.integers(0, 200), st.lists(st.integers(1, 60), max_size=12), st.sampled_from([*QUICK]))
def test_a_verdict_before_the_end_is_that_of_the_thinking_by_itself(
    at: int, cuts: list[int], name: str
) -> None:
    """However the stream is cut, and whatever the answer says."""
    thinking = LOOP[:at]
    alone = watched(QUICK[name]).update(thinking)
    cut, text, done = watched(QUICK[name]), [*thinking, END, *LOOP], 0
    for size in (*cuts, len(text)):
        cut.update(text[done : done + size])
        done += size
    assert cut.verdict == alone


def test_more_repetition_is_asked_for_where_no_thinking_goes_on() -> None:
    for detector in (lil.Cycle(), lil.Recurrence()):
        thinking = detector.watch(b"<think>").update(LOOP)
        other = detector.watch().update(LOOP)
        answer = detector.everywhere().watch(b"<think>").update([END, *LOOP])
        assert thinking is not None
        assert other is not None
        assert answer is not None
        assert thinking.token < 150
        assert 1000 <= other.token < 1100
        assert answer.token == other.token + 1


def test_within_the_thinking_is_refused_where_there_is_none() -> None:
    alone = lil.Cycle(within="thinking")
    parts = lil.Either([lil.Budget(9), alone])
    for detector in (alone, parts):
        detector.require_tokens([b"a", END])
        with pytest.raises(InvalidValue, match="within = 'thinking'.*no token </think>"):
            detector.require_tokens([b"a", b"<", b"/think>"])
        with pytest.raises(InvalidValue, match="within = 'thinking'.*no <think>"):
            lil.replay(trace(LOOP), detector)
    assert lil.replay(trace([b"<think>", *LOOP]), alone) is not None
    assert lil.replay(trace(LOOP, b"<think>"), alone) is not None
    with pytest.raises(InvalidValue, match="within = 'thinkng'"):
        lil.Cycle(within="thinkng")


def test_parts_watch_what_the_whole_does_unless_they_say_otherwise() -> None:
    whole = lil.Either([lil.Cycle(), lil.Guardian(within="thinking")], within="output")
    assert [part.within for part in whole.detectors] == ["output", "thinking"]
    assert lil.Either(**whole.params()) == whole
    assert [part.within for part in whole.everywhere().detectors] == ["output", "output"]
    mixed = lil.Either([lil.Cycle(outside=0), lil.Budget(9, within="output")])
    verdict = mixed.watch().update([END, *LOOP])
    assert verdict is not None
    assert verdict.evidence["part"] == "budget"

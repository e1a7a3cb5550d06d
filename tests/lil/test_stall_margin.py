"""`stall` and `margin`: oracles from their definitions, in `decode` and in `generate()`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch
from acting_rows import Read, live
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FIVE_PROMPTS, WORDS, run_in_chunks

import lil
from attention.errors import InvalidValue


def naive_stall(
    pieces: Sequence[bytes], states: Sequence[Sequence[float]], stall: lil.Stall
) -> tuple[list[tuple[int, float]], int | None]:
    """Numbers of all chunks, and the tokens that a verdict keeps; by loops, in float64."""
    numbers, earlier, total, since = [], [], 0.0, 0
    fired = None
    for n, (piece, state) in enumerate(zip(pieces, states, strict=True), start=1):
        if fired is not None:
            return numbers, n
        since += 1
        if b"\n\n" not in piece and since < stall.longest:
            continue
        since = 0
        size = math.sqrt(math.fsum(x * x for x in state))
        unit = [x / size for x in state] if size else [0.0 for _ in state]
        cosines = sorted(
            (math.fsum(a * b for a, b in zip(unit, other, strict=True)) for other in earlier),
            reverse=True,
        )
        number = cosines[stall.before - 1] if len(cosines) >= stall.before else 0.0
        earlier.append(unit)
        numbers.append((n, number))
        total = max(0.0, total + number - stall.drift)
        if total >= stall.level:
            fired = n
    return numbers, None


whole = st.integers(-3, 3).map(float)


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b\n\n", b"\n"]), whole, whole), max_size=80),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([-0.03, 0.51, 0.83]),
    st.sampled_from([0.21, 1.13]),
)
def test_stall_is_what_its_definition_says(
    drawn: list[tuple[bytes, float, float]], longest: int, before: int, drift: float, level: float
) -> None:
    stall = lil.Stall(longest=longest, before=before, drift=drift, level=level)
    pieces, states = [piece for piece, *_ in drawn], [state for _, *state in drawn]
    watcher = stall.watch()
    verdict = live(watcher, pieces, [Read(state) for state in states])
    numbers, token = naive_stall(pieces, states, stall)
    assert (None if verdict is None else verdict.token) == token
    (signal,) = watcher.seen().values()
    assert [at for at, _ in signal] == [at for at, _ in numbers]
    assert [x for _, x in signal] == pytest.approx([x for _, x in numbers], abs=1e-5)
    if verdict is not None:
        assert verdict.evidence["sum"] >= level
        json.dumps(verdict.evidence)
    again = stall.watch()
    again.recall(json.loads(json.dumps(watcher.seen())))
    assert again.update(pieces) == verdict
    quiet = stall.quiet().watch()
    assert live(quiet, pieces, [Read(state) for state in states]) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b".", b"so.", b'?" ', b"\n", b"1.5", b"</think>"]),
            st.sampled_from([0.0, 0.2, 0.25, 0.3]),
        ),
        max_size=30,
    ),
    st.sampled_from([0, 0.25]),
)
def test_margin_is_what_its_definition_says(drawn: list[tuple[bytes, float]], below: float) -> None:
    margin = lil.Margin(below=below)
    pieces, reads = [piece for piece, _ in drawn], [Read(margin=x) for _, x in drawn]
    ending = [n for n, piece in enumerate(pieces, 1) if piece in (b".", b"so.", b'?" ', b"\n")]
    thinking = pieces.index(b"</think>") if b"</think>" in pieces else len(pieces)
    # What is followed by the end of thinking ends by itself.
    narrow = [n for n in ending if n < thinking and drawn[n - 1][1] < below]
    # The number comes with the next token.
    token = narrow[0] if narrow and narrow[0] < len(pieces) else None
    watcher = margin.watch()
    verdict = live(watcher, pieces, reads)
    assert (None if verdict is None else (verdict.token, verdict.step)) == (
        None if token is None else (token, token + 1)
    )
    again = margin.watch()
    again.recall(json.loads(json.dumps(watcher.seen())))
    assert again.update(pieces) == verdict
    quiet = margin.quiet().watch()
    assert live(quiet, pieces, reads) is None
    assert [n for n, _ in quiet.seen()[margin.signal]] == [n for n in ending if n <= thinking]


def test_margins_are_those_of_transformers(qwen, tokenizer):
    margin = lil.Margin(below=2.5, end=tokenizer.decode([7]))
    for trace in run_in_chunks(qwen, tokenizer, probes=[margin], temperature=0.8):
        ids = torch.tensor([[*trace.prompt_ids, *trace.new_ids]])
        with torch.no_grad():
            scores = qwen(ids).logits[0].double().log_softmax(-1)
        (signal,) = trace.signals.values()
        assert signal
        for at, margin in signal:
            # Of what follows the `at`-th token, before the penalty and the temperature.
            after = scores[len(trace.prompt_ids) + at - 1]
            assert margin == pytest.approx(float(after.max() - after[7]), abs=1e-5)


def test_an_end_that_no_token_has_is_refused(qwen, tokenizer):
    with pytest.raises(InvalidValue, match=r"tokenizer.*no such end"):
        lil.decode(qwen, tokenizer, FIVE_PROMPTS, detectors=[lil.Margin(end="no such end")])
    with pytest.raises(InvalidValue, match="margin reads"):
        lil.StopOn(lil.Margin(end=tokenizer.decode([7])), tokenizer=tokenizer)


def test_of_several_ids_with_the_bytes_the_one_that_is_written_is_compared(qwen, tokenizer):
    margin = lil.Margin(end=" has")
    table = [*WORDS[:7], *["."] * 50]  # most tokens end a sentence
    signals = []
    for first in ("<eos>", " has"):
        options = {"token_bytes": [first.encode(), *(word.encode() for word in table[1:])]}
        (trace,) = lil.decode(qwen, tokenizer, [[5]], probes=[margin], max_new_tokens=9, **options)
        signals.append(trace.signals[margin.signal])
    assert signals[0]
    assert signals[1] == signals[0]

"""A chopper from stored traces: which problems are held out, what is counted, what is measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import train_chopper

from attention.errors import InvalidValue
from lil.chopper import Labeller, TextMatch, Training
from lil.chopper.chunks import chunks

LABELLER = Labeller(embedder=TextMatch())
SOUND = [[b"a%d" % i, b" b", b" c", b"\n\n"] for i in range(4)]
SALAD = [[b"same", b" thing", b" again", b"\n\n"]] * 12


def traces() -> list[train_chopper.ChunkedTrace]:
    """Two traces of each of five problems, whose states tell the repeated chunks apart."""
    pieces = [piece for chunk in (*SOUND, *SALAD) for piece in chunk]
    parts = tuple(chunks(pieces))
    texts = [b"".join(pieces[part.start : part.end]).decode() for part in parts]
    first = LABELLER.salad_from(texts)
    assert first is not None
    states = torch.zeros(len(parts), 4)
    states[first:, 0] = 1.0
    trace = SimpleNamespace(pieces=pieces)
    made = []
    for number in range(10):
        backend = {"name": "h2o" if number % 2 else "full"}
        cell = SimpleNamespace(dataset="easy", backend=backend)
        run = SimpleNamespace(configuration=cell, item_id=f"p{number // 2}")
        made.append(train_chopper.ChunkedTrace(run, trace, parts, first, states))
    return made


def test_every_fifth_problem_is_held_out_and_nothing_is_measured_on_its_training() -> None:
    train, held_out = train_chopper.held_out_by_problem(traces())
    assert {trace.run.item_id for trace in held_out} == {"p4"}
    assert (len(train), len(held_out)) == (8, 2)
    classifier = train_chopper.fit(
        train, Training(short=1), model="m", block=-2, labeller=LABELLER, about={"split": "train"}
    )
    facts = classifier.training
    assert (facts["problems"], facts["traces"], facts["split"]) == ({"easy": 4}, 8, "train")
    assert facts["backends"] == [{"name": "full"}, {"name": "h2o"}]
    rows = train_chopper.measured(classifier, held_out, short=1)
    assert [row["backend"] for row in rows] == ["full", "h2o", "all"]
    assert (rows[-1]["traces"], rows[-1]["auroc"]) == (2, 1.0)


def test_too_few_problems_and_blank_lines_of_two_tokens_are_refused() -> None:
    with pytest.raises(InvalidValue, match="five or more"):
        train_chopper.held_out_by_problem(traces()[:8])
    train_chopper.require_chunks(traces(), "m")
    pieces = [b"a", b"\n", b"\n", b"b", b"\n", b"\n"]
    split = SimpleNamespace(trace=SimpleNamespace(pieces=pieces), chunks=())
    with pytest.raises(InvalidValue, match="writes a blank line as one token"):
        train_chopper.require_chunks([split], "m")

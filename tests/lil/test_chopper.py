"""The detector: live from hidden states, and the same verdict from stored numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from acting_rows import Read, live

import lil
from attention.errors import InvalidValue
from lil import detectors
from lil.chopper.classifier import Classifier
from lil.detectors import Regenerate

CLASSIFIER = Classifier(torch.tensor([1.0, 0.0]), 0.0, -2, "tiny")


def logit(p: float) -> Read:
    return Read([math.log(p / (1 - p)), 7.0], block=-2)


def at_ends(pieces: list[bytes], numbers: list[float]) -> list[Read | None]:
    """Readings with these probabilities where chunks end, and nowhere else."""
    left = iter(numbers)
    return [logit(next(left)) if b"\n\n" in piece else None for piece in pieces]


def chunked(lengths: list[int]) -> list[bytes]:
    return [b"\n\n" if i == n - 1 else b" w" for n in lengths for i in range(n)]


def test_the_streak_is_dropped_one_token_later() -> None:
    chopper = lil.Chopper(CLASSIFIER).watch(b"Go.\n\n")
    pieces = [*chunked([7, 5, 11, 13]), b" Next"]
    reads = at_ends(pieces, [0.8, 0.2, 0.7, 0.9])  # the first is hot too, and kept
    verdict = live(chopper, pieces, reads)
    assert verdict is not None
    assert (verdict.detector, verdict.token, verdict.anchor) == ("chopper", 12, 12)
    assert verdict.evidence["probabilities"] == pytest.approx([0.7, 0.9])
    assert {k: v for k, v in verdict.evidence.items() if k != "probabilities"} == {
        "step": 37,
        "long_streak": 2,
        "short_streak": 0,
        "kept": 12,
        "dropped": 25,
    }
    json.dumps(verdict.evidence)
    assert [at for at, _ in chopper.seen()[lil.Chopper(CLASSIFIER).signal]] == [7, 12, 23, 36]
    assert chopper.update([b"more", b"\n\n"]) == verdict
    assert not chopper.wants
    # Without the token behind it there is no verdict yet.
    chopper = lil.Chopper(CLASSIFIER).watch(b"Go.\n\n")
    assert live(chopper, pieces[:-1], reads[:-1]) is None
    assert chopper.update([]) is None
    assert chopper.update([b" Next"]) == verdict


def test_where_a_verdict_may_go_back_to() -> None:
    chopper = lil.Chopper(CLASSIFIER, on_stop="regenerate").watch()
    assert list(chopper.returns()) == [0]
    before, after = {}, {}
    for number, piece in enumerate(chunked([3, 3, 11, 11]), start=1):
        chopper.update([piece])
        before[number] = list(chopper.returns())
        if chopper.wants:
            chopper.see(logit(0.1 if number == 6 else 0.9))
        after[number] = list(chopper.returns())
    # A chunk's end is named while its number is not known, and stays if it turns out cold.
    ends = {3: [0, 3], 6: [0, 6], 17: [6, 17], 28: [6, 28]}
    assert before == {n: ends.get(n, [0] if n < 6 else [6]) for n in range(1, 29)}
    assert after == {n: [0] if n < 6 else [6] for n in range(1, 29)}
    verdict = chopper.update([b"x"])
    assert verdict is not None
    assert verdict.anchor == 6
    assert list(chopper.returns()) == [6]
    for action, named in (("stop", False), ("answer", True), ("densify", True)):
        other = lil.Chopper(CLASSIFIER, on_stop=action).watch()
        assert bool(other.returns()) is named


def test_parameters_come_back(tmp_path: Path) -> None:
    CLASSIFIER.save(tmp_path / "w.safetensors")
    action = Regenerate(cue="Let me start again.", tokens=99)
    chopper = lil.Chopper(str(tmp_path / "w.safetensors"), threshold=0.6, on_stop=action)
    params = json.loads(json.dumps(chopper.params()))
    assert params["weights"] == str(tmp_path / "w.safetensors")
    again = detectors.get("chopper", **params)
    assert again == chopper
    assert again.params() == chopper.params()
    assert lil.Chopper(tmp_path / "w.safetensors") == lil.Chopper(CLASSIFIER)
    assert lil.Chopper(CLASSIFIER).params()["weights"] is None

    other = Classifier(torch.tensor([1.0, 1.0]), 0.0, -2, "tiny")
    assert lil.Chopper(other).signal != chopper.signal == lil.Chopper(CLASSIFIER).signal
    assert lil.Chopper(other) != lil.Chopper(CLASSIFIER)
    other.save(tmp_path / "w.safetensors")
    with pytest.raises(InvalidValue, match=f"digest = '{CLASSIFIER.digest}'"):
        detectors.get("chopper", **params)


def test_a_tokenizer_whose_tokens_end_no_chunk_is_refused() -> None:
    chopper = lil.Chopper(CLASSIFIER)
    chopper.require_tokens([b"a", b".\n\n"])
    with pytest.raises(InvalidValue, match=r"2 tokens for chopper.*no other ends a chunk"):
        chopper.require_tokens([b"a", b"\n"])

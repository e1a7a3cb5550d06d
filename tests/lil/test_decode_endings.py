"""How a row ends, and what penalties and detectors see on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import lil
from attention.errors import InvalidValue

PROMPTS = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30]]


@dataclass(frozen=True)
class AtToken:
    """A detector that fires after a given number of tokens, and notes what it saw."""

    token: int
    seen: list[object] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "at_token"

    def params(self) -> dict[str, object]:
        return {"token": self.token}

    def clone(self) -> AtToken:
        return AtToken(self.token, self.seen)

    def start(self, prompt: bytes = b"") -> None:
        object.__setattr__(self, "count", 0)
        self.seen.append(prompt)

    def update(self, pieces: Sequence[bytes]) -> lil.Verdict | None:
        for piece in pieces:
            self.seen.append(piece)
            object.__setattr__(self, "count", self.count + 1)
            if self.count == self.token:
                return lil.Verdict(self.name, self.token, {"count": self.count})
        return None


class Recorder:
    """A neutral penalty that notes each row's inputs; a clone is a new row."""

    def __init__(self, log: list[list[list[int]]]) -> None:
        self.log = log

    def clone(self) -> Recorder:
        self.log.append([])
        twin = Recorder(self.log)
        twin.mine = self.log[-1]
        return twin

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        self.mine.append(input_ids[0].tolist())
        return scores


class OncePerToken:
    """A penalty with state: a token it has seen chosen may not come again."""

    def __init__(self) -> None:
        self.width: int | None = None
        self.used: set[int] = set()

    def clone(self) -> OncePerToken:
        return OncePerToken()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert self.width is None or input_ids.shape[1] == self.width + 1
        if self.width is not None:
            self.used.add(int(input_ids[0, -1]))
        self.width = input_ids.shape[1]
        scores = scores.clone()
        scores[0, list(self.used)] = -torch.inf
        return scores


@pytest.fixture(scope="module")
def free(qwen, tokenizer) -> list[lil.Trace]:
    """The same prompts with nothing to stop them but the cap."""
    return lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=40)


def test_eos_is_kept_counted_and_left_out_of_the_text(qwen, tokenizer, eos, free):
    stop = free[2].new_ids[9]
    at = free[2].new_ids.index(stop) + 1
    eos([59, stop])
    trace = lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=40)[2]
    assert trace.finish == "eos"
    assert trace.new_ids == free[2].new_ids[:at]
    assert trace.tokens == at == trace.checks[-1]["tokens"]
    assert trace.text == tokenizer.decode(trace.new_ids[:-1])
    assert trace.curve[-1][:2] == (at, len(trace.text.encode()))
    assert trace.evidence is None


def test_eos_beats_cap_and_verdict_and_the_cap_beats_a_verdict(qwen, tokenizer, eos, free):
    stop = free[0].new_ids[9]
    at = free[0].new_ids.index(stop) + 1

    def finish(cap: int, *fire: int) -> tuple[str, int]:
        detectors = [AtToken(token) for token in fire]
        (trace,) = lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=detectors, max_new_tokens=cap)
        return trace.finish, trace.tokens

    assert finish(40) == ("length", 40)
    assert finish(at, at) == ("length", at)
    assert finish(40, at) == ("at_token", at)
    eos(stop)
    assert finish(at, at) == ("eos", at)
    assert finish(at + 1, at) == ("eos", at)
    assert finish(at + 1, at - 1) == ("at_token", at - 1)
    assert finish(at - 1, at - 1) == ("length", at - 1)


def test_a_verdict_ends_its_row_alone_with_its_evidence(qwen, tokenizer, free):
    detector = AtToken(7)
    traces = lil.decode(
        qwen, tokenizer, PROMPTS, detectors=[detector], max_new_tokens=[40, 5, 40, 40], batch_size=2
    )
    assert [trace.finish for trace in traces] == ["at_token", "length", "at_token", "at_token"]
    assert traces[0].evidence == {"count": 7}
    assert [trace.new_ids for trace in traces] == [
        trace.new_ids[:n] for trace, n in zip(free, (7, 5, 7, 7), strict=True)
    ]
    assert not hasattr(detector, "count")  # the template itself was never started


def test_a_detector_sees_the_prompts_bytes_and_then_each_token(qwen, tokenizer, free):
    detector = AtToken(100)
    lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=[detector], max_new_tokens=6)
    table = lil.token_bytes(tokenizer) + [b""] * 3
    assert detector.seen == [
        b"".join(table[i] for i in PROMPTS[0]),
        *(table[i] for i in free[0].new_ids[:5]),  # at the cap's token nobody is asked
    ]
    assert free[0].prompt_bytes == detector.seen[0]


def test_of_two_detectors_the_first_named_wins_a_tie(qwen, tokenizer):
    @dataclass(frozen=True)
    class Other(AtToken):
        name: ClassVar[str] = "other"

        def clone(self) -> Other:
            return Other(self.token)

    for pair, winner in (((AtToken(4), Other(4)), "at_token"), ((Other(4), AtToken(4)), "other")):
        (trace,) = lil.decode(qwen, tokenizer, PROMPTS[:1], detectors=pair, max_new_tokens=9)
        assert trace.finish == ("other" if winner == "other" else "at_token")


@pytest.mark.parametrize("f", [10, 20, 33])
@pytest.mark.parametrize("max_tokens", [60, 200])
def test_guardian_live_equals_guardian_replayed(f, max_tokens, qwen, llama, tokenizer):
    guardian = lil.Guardian(f=f, rate=0.8)  # these models rarely loop to the letter
    fired = 0
    for model in (qwen, llama):
        options = {"max_new_tokens": max_tokens, "batch_size": 3, "check_every": f}
        stored = lil.decode(model, tokenizer, PROMPTS, **options)
        live = lil.decode(model, tokenizer, PROMPTS, detectors=[guardian], **options)
        for trace, stopped in zip(stored, live, strict=True):
            trace = lil.Trace.from_dict(trace.to_dict())
            verdict = lil.replay(trace, guardian)
            if verdict is None:
                assert (stopped.finish, stopped.new_ids) == ("length", trace.new_ids)
            else:
                fired += 1
                assert stopped.finish == "guardian"
                assert stopped.new_ids == trace.new_ids[: verdict.token]
                assert stopped.evidence == verdict.evidence
                for field in ("keys_read", "cache_bytes"):
                    assert stopped.checks[-1][field] == trace.cost_at(verdict.token)[field]
            assert lil.replay(stopped, guardian) == verdict
    assert fired >= 2


def test_a_replay_knows_a_smaller_cap_and_eos(free):
    detector = AtToken(7)
    assert lil.replay(free[0], detector).token == 7
    assert lil.replay(free[0], detector, max_tokens=8).token == 7
    assert lil.replay(free[0], detector, max_tokens=7) is None
    assert lil.replay(free[0], AtToken(40)) is None
    cut = dataclasses.replace(free[0], new_ids=free[0].new_ids[:7], pieces=free[0].pieces[:7])
    assert lil.replay(dataclasses.replace(cut, finish="eos"), detector) is None
    assert lil.replay(dataclasses.replace(cut, finish="length"), detector) is None
    assert lil.replay(dataclasses.replace(cut, finish="at_token"), detector).token == 7


def test_a_neutral_penalty_is_the_identity_and_sees_the_rows_own_tokens(qwen, tokenizer, free):
    log: list[list[list[int]]] = []
    traces = lil.decode(
        qwen, tokenizer, PROMPTS, penalties=[Recorder(log)], max_new_tokens=40, batch_size=3
    )
    assert [trace.new_ids for trace in traces] == [trace.new_ids for trace in free]
    for prompt, trace, calls in zip(PROMPTS, traces, log, strict=True):
        whole = [*prompt, *trace.new_ids]
        assert calls == [whole[: len(prompt) + n] for n in range(40)]


def test_a_penalty_keeps_its_state_per_row_and_over_a_reused_prefix(qwen, tokenizer):
    options = {"penalties": [OncePerToken()], "max_new_tokens": 25}
    alone = lil.decode(qwen, tokenizer, PROMPTS, batch_size=1, **options)
    for trace in alone:
        assert len(set(trace.new_ids)) == 25
    batched = lil.decode(qwen, tokenizer, PROMPTS, batch_size=3, **options)
    assert [trace.new_ids for trace in batched] == [trace.new_ids for trace in alone]
    forced = [trace.new_ids[:n] for trace, n in zip(alone, (10, 0, 24, 3), strict=True)]
    reused = lil.decode(qwen, tokenizer, PROMPTS, forced=forced, **options)
    assert [trace.new_ids for trace in reused] == [trace.new_ids for trace in alone]


def test_a_detectors_exception_is_not_hidden_and_the_model_is_restored(qwen, tokenizer):
    class Broken(AtToken):
        def clone(self) -> Broken:
            return Broken(self.token)

        def update(self, pieces: Sequence[bytes]) -> lil.Verdict | None:
            raise ZeroDivisionError(f"broken detector after {pieces!r}")

    before = qwen.config._attn_implementation
    with pytest.raises(ZeroDivisionError, match="broken detector"):
        lil.decode(qwen, tokenizer, PROMPTS, detectors=[Broken(1)], max_new_tokens=9)
    assert qwen.config._attn_implementation == before


def test_scores_that_are_not_numbers_end_the_run(qwen, tokenizer):
    class Poison(OncePerToken):
        def clone(self) -> Poison:
            return Poison()

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return super().__call__(input_ids, scores) * torch.nan

    with pytest.raises(FloatingPointError):
        lil.decode(qwen, tokenizer, PROMPTS, penalties=[Poison()], max_new_tokens=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"check_every": 0}, "check_every = 0"),
        ({"max_new_tokens": 0}, r"max_new_tokens\[0\] = 0"),
        ({"max_new_tokens": [1, 2]}, "max_new_tokens = '2 values'"),
        ({"forced": [[1]]}, "forced = '1 values'"),
        ({"item_ids": ["a"]}, "item_ids = '1 values'"),
        ({"sample_indices": [1]}, "sample_indices = '1 values'"),
        ({"temperature": -1.0}, "temperature"),
        ({"forced": [[60], [], [], []]}, r"forced\[0\] = 60"),
    ],
)
def test_arguments_are_refused_before_anything_is_computed(options, message, qwen, tokenizer):
    with pytest.raises(InvalidValue, match=message):
        lil.stream(qwen, tokenizer, PROMPTS, **options)


def test_prompts_are_refused_with_their_place(qwen, tokenizer):
    with pytest.raises(InvalidValue, match=r"prompts\[1\] = 60.*0 to 59"):
        lil.stream(qwen, tokenizer, [[5], [60]])
    with pytest.raises(InvalidValue, match=r"prompts\[0\] = ''"):
        lil.stream(qwen, tokenizer, [""])
    with pytest.raises(InvalidValue, match="a list of prompts"):
        lil.stream(qwen, tokenizer, "Anna")


def test_a_model_in_training_mode_is_refused(qwen, tokenizer):
    qwen.train()
    try:
        with pytest.raises(InvalidValue, match="evaluation mode"):
            lil.stream(qwen, tokenizer, PROMPTS)
    finally:
        qwen.eval()

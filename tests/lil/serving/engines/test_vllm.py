"""Inside vLLM, offline, with the reasoner that ships: the tokens are `lil.decode`'s.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from vllm_runs import CAP, PROMPTS, SHORT, engine, ours, theirs, with_end  # noqa: E402

import lil  # noqa: E402
from lil.detectors import Answer  # noqa: E402
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty, RepetitionPenalty  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("told") / "verdicts.jsonl"


@pytest.fixture(scope="module")
def served(notes: Path) -> Iterator[vllm.LLM]:
    """Eight places, prompts read in pieces of 64 tokens, and a memory that sixty requests share."""
    llm = engine(
        max_num_batched_tokens=64,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        additional_config={"lil": {"stop_on_file": str(notes)}},
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def plain(reasoner: Any) -> list[list[int]]:
    return ours(reasoner, PROMPTS)


# Strong enough that most requests are worded otherwise.
PENALTIES: dict[str, tuple[dict[str, Any], Penalty]] = {
    "derived": ({"lz": "on", "lz_alpha": 1.5}, lil.LZPenalty(alpha=1.5)),
    "printed": (
        {"lz_alpha": 1.5, "lz_formula": "printed"},
        lil.LZPenalty(alpha=1.5, formula="printed"),
    ),
    "rate": ({"lz_alpha": 1.5, "lz_formula": "rate"}, lil.LZPenalty(alpha=1.5, formula="rate")),
    "lz of prompts too": (
        {"lz_alpha": 1, "lz_window": 100, "lz_include_prompt": "on"},
        lil.LZPenalty(alpha=1, window=100, include_prompt=True),
    ),
    "dry of prompts too": (
        {"dry_multiplier": 2, "dry_include_prompt": "on"},
        DRYPenalty(multiplier=2, include_prompt=True),
    ),
    "presence_window": (
        {"presence_window_strength": 20},
        PresenceWindowPenalty(strength=20),
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_tokens_with_a_penalty_are_those_of_decode_and_of_others_those_without(
    served, reasoner, plain, name
):
    extra, penalty = PENALTIES[name]
    expected = ours(reasoner, PROMPTS, penalties=[penalty], max_new_tokens=SHORT)
    without = [one[:SHORT] for one in plain]
    assert sum(one != two for one, two in zip(expected, without, strict=True)) > 32
    # Every fourth prompt a second time, without.
    asked = [(i, given) for i in range(64) for given in [extra, None][: 1 + (i % 4 == 0)]]
    found = theirs(
        served, [PROMPTS[i] for i, _ in asked], [one for _, one in asked], max_tokens=SHORT
    )
    for tokens, (i, given) in zip(found, asked, strict=True):
        assert tokens == (expected if given else without)[i]


def test_penalties_of_many_requests_at_once(served, reasoner):
    asked = list(PENALTIES.values())
    extra = [asked[i % len(asked)][0] for i in range(30)]
    found = theirs(served, PROMPTS[:30], extra, max_tokens=SHORT)
    for at, (_, penalty) in enumerate(asked):
        mine = ours(
            reasoner, PROMPTS[at : 30 : len(asked)], penalties=[penalty], max_new_tokens=SHORT
        )
        assert found[at :: len(asked)] == mine


LOOPS = RepetitionPenalty(penalty=0.5, include_prompt=True)
DETECTORS = {
    "guardian(f=100)": lil.Guardian(f=100),
    "guardian": lil.Guardian(),
    "recurrence": lil.Recurrence(),
    "cycle": lil.Cycle(),
    'either(parts="cycle+recurrence")': lil.Either("cycle+recurrence"),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_loops_are_ended_where_decode_ends_them(served, reasoner, notes, name):
    """Every second request is ended, the others are brought to answer."""
    notes.write_text("")
    prompts = PROMPTS[:16]
    params = {k: v for k, v in DETECTORS[name].params().items() if k != "on_stop"}
    traces: list[Any] = [None] * len(prompts)
    for first, action in enumerate(["stop", Answer(tokens=40)]):
        traces[first::2] = lil.decode(
            *reasoner,
            prompts[first::2],
            batch_size=16,
            max_new_tokens=CAP,
            penalties=[LOOPS],
            detectors=[type(DETECTORS[name])(**params, on_stop=action)],
        )
    asked = [
        {"stop_on": f"{name}:answer", "stop_on_tokens": 40, "stop_on_label": str(i)}
        if i % 2
        else {"stop_on": name, "stop_on_label": str(i)}
        for i in range(len(prompts))
    ]
    found = theirs(served, prompts, asked, repetition_penalty=0.5)
    end = reasoner[1].eos_token_id
    stopped = 0
    for one, trace in zip(found, traces, strict=True):
        assert one == with_end(trace, end, CAP)
        stopped += trace.finish not in ("eos", "length") or trace.action is not None
    assert stopped > 1
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    first_told = {line["label"]: line for line in reversed(told)}
    assert len(first_told) == stopped
    for at, trace in enumerate(traces):
        evidence = trace.action["evidence"] if trace.action else trace.evidence
        assert (str(at) in first_told) == (evidence is not None)
        if evidence is not None:
            assert first_told[str(at)]["evidence"] == dict(evidence)


def test_what_does_not_loop_is_left_alone(served, plain, notes):
    notes.write_text("")
    watched = {"stop_on": "guardian;recurrence;cycle"}
    assert theirs(served, PROMPTS, [watched] * len(PROMPTS)) == plain
    assert notes.read_text() == ""


def test_a_request_that_was_ended_says_so_by_its_own_stop_token(served, reasoner):
    spare = len(reasoner[1]) - 1
    params = vllm.SamplingParams(
        temperature=0,
        max_tokens=CAP,
        stop_token_ids=[spare],
        extra_args={"stop_on": "budget(tokens=50)", "stop_on_token": spare},
    )
    (out,) = served.generate(PROMPTS[:1], params, use_tqdm=False)
    done = out.outputs[0]
    assert (done.finish_reason, done.stop_reason, len(done.token_ids)) == ("stop", spare, 51)


def test_several_samples_of_a_request_each_have_their_own_state(served):
    params = vllm.SamplingParams(
        temperature=0,
        n=1,
        max_tokens=200,
        extra_args={"lz_alpha": 0.4, "stop_on": "budget(tokens=120):answer"},
    )
    (one,) = served.generate(PROMPTS[:1], params, use_tqdm=False)
    warm = params.clone()
    warm.n, warm.temperature = 4, 1.5
    (many,) = served.generate(PROMPTS[:1], warm, use_tqdm=False)
    assert len({tuple(sample.token_ids) for sample in many.outputs}) > 1
    decode = served.get_tokenizer().decode
    cued = [
        decode(sample.token_ids[120:]).startswith(Answer.cue)
        for sample in many.outputs
        if len(sample.token_ids) > 120 and Answer.cue not in decode(sample.token_ids[:120])
    ]
    assert cued
    assert all(cued)
    (after,) = served.generate(PROMPTS[:1], params, use_tqdm=False)
    assert after.outputs[0].token_ids == one.outputs[0].token_ids


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"lz_alhpa": 1}, "did you mean 'lz_alpha'"),
        ({"lz_formula": "printd"}, "did you mean 'printed'"),
        ({"stop_on": "guardian(f=0)"}, "f = 0"),
        ({"stop_on": "/etc/passwd.json"}, "files are for who starts the server"),
    ],
)
def test_wrong_values_are_refused_and_the_engine_lives(served, plain, extra, message):
    with pytest.raises(vllm.exceptions.VLLMValidationError, match=message):
        theirs(served, PROMPTS[:1], [extra])
    assert theirs(served, PROMPTS[:1], [None]) == plain[:1]


def test_a_request_that_nothing_can_end_is_refused(served):
    with pytest.raises(vllm.exceptions.VLLMValidationError, match="ignore_eos"):
        theirs(served, PROMPTS[:1], [{"stop_on": "cycle"}], ignore_eos=True)

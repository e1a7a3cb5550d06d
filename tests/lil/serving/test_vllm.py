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

from vllm_runs import CAP, PROMPTS, engine, ours, theirs  # noqa: E402

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


PENALTIES: dict[str, tuple[dict[str, Any], Penalty]] = {
    "derived": ({"lz": "on", "lz_alpha": 0.4}, lil.LZPenalty(alpha=0.4)),
    "printed": (
        {"lz_alpha": 0.4, "lz_formula": "printed"},
        lil.LZPenalty(alpha=0.4, formula="printed"),
    ),
    "rate": ({"lz_alpha": 0.4, "lz_formula": "rate"}, lil.LZPenalty(alpha=0.4, formula="rate")),
    "lz of prompts too": (
        {"lz_window": 100, "lz_include_prompt": "on"},
        lil.LZPenalty(window=100, include_prompt=True),
    ),
    "dry": ({"dry_multiplier": 0.1}, DRYPenalty(multiplier=0.1)),
    "presence_window": ({"presence_window": "on"}, PresenceWindowPenalty()),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_tokens_with_a_penalty_are_those_of_decode_and_of_others_those_without(
    served, reasoner, plain, name
):
    extra, penalty = PENALTIES[name]
    expected = ours(reasoner, PROMPTS, penalties=[penalty])
    assert sum(one != two for one, two in zip(expected, plain, strict=True)) > 32
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    found = theirs(served, prompts, [extra, None] * len(PROMPTS))
    assert found[1::2] == plain
    assert found[::2] == expected


def test_penalties_of_many_requests_at_once(served, reasoner):
    asked = list(PENALTIES.values())
    found = theirs(served, PROMPTS[:30], [asked[i % len(asked)][0] for i in range(30)])
    for at, (_, penalty) in enumerate(asked):
        mine = ours(reasoner, PROMPTS[at : 30 : len(asked)], penalties=[penalty])
        assert found[at :: len(asked)] == mine


LOOPS = RepetitionPenalty(penalty=0.7, include_prompt=True)
DETECTORS = {
    "guardian(f=100)": lil.Guardian(f=100),
    "guardian": lil.Guardian(),
    "recurrence": lil.Recurrence(),
    "cycle": lil.Cycle(),
    'either(parts="cycle+recurrence")': lil.Either("cycle+recurrence"),
}


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("what", ["stop", "answer"])
def test_loops_are_ended_where_decode_ends_them(served, reasoner, notes, name, what):
    notes.write_text("")
    detector = type(DETECTORS[name])(
        **{k: v for k, v in DETECTORS[name].params().items() if k != "on_stop"},
        on_stop=Answer(tokens=40) if what == "answer" else "stop",
    )
    prompts = PROMPTS[:24]
    traces = lil.decode(
        *reasoner,
        prompts,
        batch_size=16,
        max_new_tokens=CAP,
        penalties=[LOOPS],
        detectors=[detector],
    )
    asked = {"stop_on": f"{name}:{what}"}
    if what == "answer":
        asked["stop_on_tokens"] = 40
    labelled = [{**asked, "stop_on_label": str(i)} for i in range(len(prompts))]
    found = theirs(served, prompts, labelled, repetition_penalty=0.7)
    end = reasoner[1].eos_token_id
    stopped = 0
    for one, trace in zip(found, traces, strict=True):
        kept = list(trace.new_ids)
        # Where decode cuts, or an answer has had its tokens, the request is given its end.
        forced = trace.finish != "eos" and len(kept) < CAP
        assert one == kept + [end] * forced
        stopped += trace.finish not in ("eos", "length") or trace.action is not None
    assert stopped > 4
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    first = {line["label"]: line for line in reversed(told)}
    assert len(first) == stopped
    for at, trace in enumerate(traces):
        evidence = trace.action["evidence"] if trace.action else trace.evidence
        assert (str(at) in first) == (evidence is not None)
        if evidence is not None:
            assert first[str(at)]["evidence"] == dict(evidence)


@pytest.mark.parametrize("name", ["guardian", "recurrence", "cycle"])
def test_what_does_not_loop_is_left_alone(served, plain, notes, name):
    notes.write_text("")
    assert theirs(served, PROMPTS, [{"stop_on": name}] * len(PROMPTS)) == plain
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
    warm.n, warm.temperature, warm.seed = 4, 0.8, 3
    (many,) = served.generate(PROMPTS[:1], warm, use_tqdm=False)
    assert len({tuple(sample.token_ids) for sample in many.outputs}) > 1
    (again,) = served.generate(PROMPTS[:1], warm, use_tqdm=False)
    assert [s.token_ids for s in again.outputs] == [s.token_ids for s in many.outputs]
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

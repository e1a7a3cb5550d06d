"""Inside vLLM, offline, with the reasoner that ships: the tokens are `lil.decode`'s.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from engine_runs import (  # noqa: E402
    CAP,
    LONG,
    PROMPTS,
    SHORT,
    decoded,
    engine,
    generated,
    only_long,
    shut,
    with_end,
)

import lil  # noqa: E402
from lil.detectors import Answer  # noqa: E402
from lil.penalties import DRYPenalty, Penalty, PresenceWindowPenalty, RepetitionPenalty  # noqa: E402
from lil.serving.vllm import requests  # noqa: E402

pytestmark = pytest.mark.slow

N = 64 if LONG else 12


@pytest.fixture(scope="module")
def served() -> Iterator[vllm.LLM]:
    """Eight places, prompts read in pieces of 64 tokens, and a memory that requests share."""
    llm = engine(max_num_batched_tokens=64, enable_chunked_prefill=True, enable_prefix_caching=True)
    yield llm
    shut(llm)


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The verdicts in the engine's log."""
    noted: list[Any] = []
    monkeypatch.setattr(requests, "log_verdict", lambda _log, verdict: noted.append(verdict))
    return noted


# Strong enough that most requests are worded otherwise.
PENALTIES: list[tuple[dict[str, Any] | None, Penalty | None]] = [
    ({"lz": "on", "lz_alpha": 1.5}, lil.LZPenalty(alpha=1.5)),
    ({"lz_alpha": 1.5, "lz_formula": "printed"}, lil.LZPenalty(alpha=1.5, formula="printed")),
    ({"lz_alpha": 1.5, "lz_formula": "rate"}, lil.LZPenalty(alpha=1.5, formula="rate")),
    (
        {"dry_multiplier": 2, "dry_include_prompt": "on"},
        DRYPenalty(multiplier=2, include_prompt=True),
    ),
    ({"presence_window_strength": 20}, PresenceWindowPenalty(strength=20)),
    ({"nowait": "on"}, lil.penalties.get("nowait")),
    (None, None),
]


def test_tokens_with_penalties_are_those_of_decode_and_of_others_those_without(
    served: Any, reasoner: Any
) -> None:
    """Each penalty and none, side by side."""
    kinds = len(PENALTIES)
    values = [PENALTIES[i % kinds][0] for i in range(N)]
    outputs = generated(served, PROMPTS[:N], values, max_tokens=SHORT)
    plain = decoded(reasoner, PROMPTS[:N], max_new_tokens=SHORT)
    changed = 0
    for first, (_, penalty) in enumerate(PENALTIES):
        penalties = [] if penalty is None else [penalty]
        prompts = PROMPTS[first:N:kinds]
        expected = decoded(reasoner, prompts, penalties=penalties, max_new_tokens=SHORT)
        assert outputs[first::kinds] == expected
        changed += sum(a != b for a, b in zip(expected, plain[first::kinds], strict=True))
    assert changed > N // 3


LOOPS = RepetitionPenalty(penalty=0.5, include_prompt=True)
DETECTORS = {"guardian(f=100)": lil.Guardian(f=100), "recurrence": lil.Recurrence()}


@pytest.mark.parametrize("name", list(DETECTORS)[: 2 if LONG else 1])
def test_loops_are_ended_where_decode_ends_them(
    served: Any, reasoner: Any, verdicts: list[Any], name: str
) -> None:
    """Every second request is ended, the others are brought to answer."""
    prompts = PROMPTS[: 12 if LONG else 8]
    params = {k: v for k, v in DETECTORS[name].params().items() if k != "on_stop"}
    traces: list[Any] = [None] * len(prompts)
    actions: list[Any] = ["stop", Answer(tokens=40)]
    for first, action in enumerate(actions):
        traces[first::2] = lil.decode(
            *reasoner,
            prompts[first::2],
            batch_size=16,
            max_new_tokens=CAP,
            penalties=[LOOPS],
            detectors=[type(DETECTORS[name])(**params, on_stop=action)],
        )
    values = [
        {"stop_on": f"{name}:answer", "stop_on_tokens": 40, "stop_on_label": str(i)}
        if i % 2
        else {"stop_on": name, "stop_on_label": str(i)}
        for i in range(len(prompts))
    ]
    outputs = generated(served, prompts, values, repetition_penalty=0.5)
    end = reasoner[1].eos_token_id
    assert outputs == [with_end(trace, end, CAP) for trace in traces]
    expected = {
        str(i): dict(trace.action["evidence"] if trace.action else trace.evidence)
        for i, trace in enumerate(traces)
        if trace.action or trace.evidence is not None
    }
    assert len(expected) > 1
    assert {line["label"]: line["evidence"] for line in reversed(verdicts)} == expected


def test_a_request_that_was_ended_says_so_by_its_own_stop_token(served: Any, reasoner: Any) -> None:
    spare = len(reasoner[1]) - 1
    params = vllm.SamplingParams(
        temperature=0,
        max_tokens=CAP,
        stop_token_ids=[spare],
        extra_args={"stop_on": "budget(tokens=50)", "stop_on_token": spare},
    )
    (output,) = served.generate(PROMPTS[:1], params, use_tqdm=False)
    done = output.outputs[0]
    assert (done.finish_reason, done.stop_reason, len(done.token_ids)) == ("stop", spare, 51)


@only_long
def test_requests_that_are_put_back_and_aborted_leave_the_others_alone(reasoner: Any) -> None:
    """Twelve blocks of 128 tokens for eight requests that take up to seven each."""
    llm = engine(
        num_gpu_blocks_override=13, block_size=128, max_model_len=1024, disable_log_stats=False
    )
    values = [{"lz_alpha": 0.4}, {"stop_on": "budget(tokens=300):answer"}, None]
    done: dict[int, list[int]] = {}
    for i, prompt in enumerate(PROMPTS[:18]):
        params = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=values[i % 3])
        llm.llm_engine.add_request(str(i), prompt, params)
    for step in range(4000):
        if step in (7, 90):
            aborted = (0, 4)[step == 90]
            llm.llm_engine.abort_request([str(aborted), str(aborted + 9)])
        for output in llm.llm_engine.step():
            if output.finished:
                done[int(output.request_id)] = list(output.outputs[0].token_ids)
        if not llm.llm_engine.has_unfinished_requests():
            break
    metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    shut(llm)
    assert metrics["vllm:num_preemptions"] > 3
    watch = lil.Budget(tokens=300, on_stop=Answer())
    options: list[dict[str, Any]] = [
        {"penalties": [lil.LZPenalty(alpha=0.4)]},
        {"detectors": [watch]},
        {},
    ]
    whole = [i for i in range(18) if i not in (0, 4, 9, 13)]
    for kind in range(3):
        some = [i for i in whole if i % 3 == kind]
        expected = decoded(reasoner, [PROMPTS[i] for i in some], **options[kind])
        assert [done[i] for i in some] == expected

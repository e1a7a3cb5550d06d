"""What happens to a server with our processors: little memory, aborts, HTTP, its own defaults.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import psutil  # noqa: E402
from counted_here import counted  # noqa: E402
from vllm_runs import CAP, PROMPTS, engine, ours, theirs  # noqa: E402

import lil  # noqa: E402
from lil.detectors import Answer  # noqa: E402

pytestmark = pytest.mark.slow


def test_requests_that_are_put_back_for_want_of_memory(reasoner):
    """Twelve blocks of 128 tokens for eight requests that take up to seven each."""
    llm = engine(
        num_gpu_blocks_override=13, block_size=128, max_model_len=1024, disable_log_stats=False
    )
    prompts = PROMPTS[:24]
    asked = [{"lz_alpha": 0.4}, {"stop_on": "budget(tokens=300):answer"}, None]
    found = theirs(llm, prompts, [asked[i % 3] for i in range(24)])
    engines = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    llm.llm_engine.engine_core.shutdown()
    assert engines["vllm:num_preemptions"] > 3
    watch = lil.Budget(tokens=300, on_stop=Answer())
    assert found[::3] == ours(reasoner, prompts[::3], penalties=[lil.LZPenalty(alpha=0.4)])
    assert found[1::3] == ours(reasoner, prompts[1::3], detectors=[watch])
    assert found[2::3] == ours(reasoner, prompts[2::3])


@pytest.fixture(scope="module")
def living() -> Iterator[vllm.LLM]:
    llm = engine(max_num_seqs=64, num_gpu_blocks_override=200, block_size=128)
    yield llm
    llm.llm_engine.engine_core.shutdown()


def test_requests_that_are_aborted_leave_the_others_alone(living, reasoner):
    inner, done = living.llm_engine, {}
    asked = [{"lz_alpha": 0.4}, {"dry_multiplier": 0.1}, {"stop_on": "budget(tokens=100):answer"}]
    for i, prompt in enumerate(PROMPTS[:18]):
        params = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=asked[i % 3])
        inner.add_request(str(i), prompt, params)
    for step in range(2000):
        if step in (7, 40, 90):
            inner.abort_request([str(i) for i in range(18) if i % 4 == (7, 40, 90).index(step)])
        for output in inner.step():
            if output.finished:
                done[int(output.request_id)] = list(output.outputs[0].token_ids)
        if not inner.has_unfinished_requests():
            break
    kept = [i for i in range(18) if i % 4 == 3]
    penalties = [lil.LZPenalty(alpha=0.4), lil.penalties.DRYPenalty(multiplier=0.1)]
    watch = lil.Budget(tokens=100, on_stop=Answer())
    for i in kept:
        options = {"detectors": [watch]} if i % 3 == 2 else {"penalties": [penalties[i % 3]]}
        assert [done[i]] == ours(reasoner, [PROMPTS[i]], **options)


def test_ten_thousand_short_requests_leave_nothing(living):
    asked = [
        {"lz": "on"},
        {"dry": "on"},
        {"presence_window": "on", "lz_formula": "rate"},
        {"stop_on": "budget(tokens=3)"},
        {"stop_on": "recurrence;guardian:answer"},
        None,
    ]

    def serve(requests: int) -> float:
        extra = [asked[i % len(asked)] for i in range(requests)]
        theirs(living, [PROMPTS[i % 64] for i in range(requests)], extra, max_tokens=6)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that what is kept is counted
        return psutil.Process().memory_info().rss / 2**20

    _, before, *after = [serve(2500) for _ in range(4)]  # the first call sets up what is kept
    assert max(after) - before < 16  # MiB, of which a request would have 3 KiB


DRAFTS = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "drafts"])
def test_the_scheduler_ends_requests_and_says_why(reasoner, drafts):
    """Between two drafts, too, that were accepted together."""
    llm = engine(
        logits_processors=None,
        scheduler_cls="lil.serving.vllm.scheduler.StopScheduler",
        speculative_config=drafts,
        disable_log_stats=drafts is None,
    )
    prompts = PROMPTS[:16]
    asked = [{"stop_on": "recurrence(run=20);cycle"}, None, {"stop_on": "guardain"}]
    params = [
        vllm.SamplingParams(
            temperature=0, max_tokens=CAP, repetition_penalty=0.5, extra_args=asked[i % 3]
        )
        for i in range(16)
    ]
    before = counted("requests", what="stop_on"), counted("tokens", what="stop_on")
    outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    assert counted("requests", what="stop_on") - before[0] == 6
    chosen = sum(len(one.token_ids) for one in outputs[::3])
    assert counted("tokens", what="stop_on") - before[1] == chosen
    engines = [] if drafts is None else llm.get_metrics()
    accepted = [one.value for one in engines if one.name.endswith("num_accepted_tokens")]
    assert all(accepted)
    assert bool(accepted) is (drafts is not None)
    llm.llm_engine.engine_core.shutdown()
    loops = lil.penalties.RepetitionPenalty(penalty=0.5, include_prompt=True)
    traces = lil.decode(
        *reasoner,
        prompts,
        batch_size=16,
        max_new_tokens=CAP,
        penalties=[loops],
        detectors=[lil.Recurrence(run=20), lil.Cycle()],
    )
    plain = ours(reasoner, prompts, penalties=[loops])
    stopped = 0
    for i, (output, trace) in enumerate(zip(outputs, traces, strict=True)):
        if i % 3 == 0:
            assert list(output.token_ids) == list(trace.new_ids)
            if trace.finish not in ("eos", "length"):
                stopped += 1
                told = f"lil: {trace.finish} at token {len(trace.new_ids)}"
                assert (output.finish_reason, output.stop_reason) == ("stop", told)
        elif i % 3 == 1:
            assert list(output.token_ids) == plain[i]
        else:
            assert (len(output.token_ids), output.finish_reason) == (1, "abort")
    assert stopped > 1

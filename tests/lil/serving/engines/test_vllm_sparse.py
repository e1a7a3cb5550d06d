"""Sparse attention inside vLLM, offline: the tokens of each policy are `lil.decode`'s.

In an environment of its own, see `scripts/test_vllm`. Eight places, prompts read in pieces of 64
tokens next to decode queries of others, prefixes shared, penalties and detectors loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from engine_runs import CAP as LONGEST  # noqa: E402
from engine_runs import LONG, PROMPTS, decoded, generated, shut, sparse  # noqa: E402

import attention  # noqa: E402
import lil  # noqa: E402
from attention.errors import InvalidValue  # noqa: E402

pytestmark = pytest.mark.slow

FULL = {"attention": "full"}
N, CAP = (64, LONGEST) if LONG else (8, 160)

INFLLM = 'infllm(budget=160, block=32, n_init=32, topk=2, repr_topk=32, far_position="absolute"'
POLICIES = {
    "sink": 'sink(budget=140, sinks=32, positions="absolute")',
    "window": "window(budget=150)",
    "quest": "quest(budget=128, page=32, dense_layers=0)",
    "quest, dense": 'quest(budget=64, page=32, gqa="max")',
    "infllm": f"{INFLLM})",
    "infllm, heads": f'{INFLLM}, n_local=20, dense_layers=1, selection="kv_head")',
}


@pytest.fixture(scope="module", params=POLICIES if LONG else ["sink", "quest, dense"])
def policy(request: Any) -> str:
    return POLICIES[request.param]


@pytest.fixture(scope="module")
def served(policy: str) -> Iterator[vllm.LLM]:
    llm = sparse(policy, max_num_batched_tokens=64, enable_chunked_prefill=True)
    yield llm
    shut(llm)


@pytest.fixture(scope="module")
def plain(reasoner: Any) -> list[list[int]]:
    return decoded(reasoner, PROMPTS[:N], max_new_tokens=CAP)


def test_tokens_and_keys_read_are_those_of_decode(
    served: Any, policy: str, reasoner: Any, plain: Any
) -> None:
    """Every fourth prompt a second time, in full: prompts are shared, what follows is not."""
    backend = attention.get(policy)
    expected = decoded(reasoner, PROMPTS[:N], backend=backend, max_new_tokens=CAP)
    assert sum(a != b for a, b in zip(expected, plain, strict=True)) > N // 4
    requests = [(i, extra) for i in range(N) for extra in [None, FULL][: 1 + (i % 4 == 0)]]
    prompts = [PROMPTS[i] for i, _ in requests]
    outputs = generated(served, prompts, [extra for _, extra in requests], max_tokens=CAP)
    assert outputs == [(plain if extra else expected)[i] for i, extra in requests]
    (trace,) = lil.decode(*reasoner, PROMPTS[2:3], max_new_tokens=CAP, backend=backend)
    before = served.collective_rpc("keys_read")[0]["total"]
    generated(served, PROMPTS[2:3], [None], max_tokens=CAP)
    after = served.collective_rpc("keys_read")[0]["total"]
    more = {name: after[name] - before[name] for name in after}
    assert more["queries"] == len(trace.new_ids) - 1
    layers, dense = 5, backend.dense_layers
    assert trace.keys_read_mean is not None
    read = (layers - dense) * trace.keys_read_mean
    read += dense * (trace.dense_layer_keys_read_mean or 0)
    assert more["keys_read"] / more["queries"] == pytest.approx(read)
    prompt = len(reasoner[1](PROMPTS[2]).input_ids)
    full = layers * (prompt + (more["queries"] + 1) / 2)
    assert more["keys_of_full"] / more["queries"] == full


def test_prompts_that_say_what_was_generated_are_read_in_full_beside_penalties_and_detectors(
    served: Any, policy: str, reasoner: Any
) -> None:
    """Keys of generated tokens are those of sparse queries, and no prompt's."""
    backend, end = attention.get(policy), reasoner[1].eos_token_id
    first = generated(served, PROMPTS[:6], [None] * 6, max_tokens=120)
    longer = [
        reasoner[1](prompt).input_ids + ids[:100]
        for prompt, ids in zip(PROMPTS[:6], first, strict=True)
        if end not in ids[:100]
    ]
    assert len(longer) > 1
    values = {"lz_alpha": 1.5, "stop_on": "budget(tokens=60):answer", "stop_on_tokens": 30}
    watch = lil.Budget(tokens=60, on_stop=lil.detectors.Answer(tokens=30))
    options: dict[str, Any] = {"penalties": [lil.LZPenalty(alpha=1.5)], "detectors": [watch]}
    expected = decoded(reasoner, longer, backend=backend, max_new_tokens=100, **options)
    prompts = [{"prompt_token_ids": ids} for ids in longer]
    assert generated(served, prompts, [values] * len(longer), max_tokens=100) == expected
    with pytest.raises(vllm.exceptions.VLLMValidationError, match="did you mean 'full'"):
        generated(served, PROMPTS[:1], [{"attention": "ful"}])


def blocks_owned(llm: Any) -> int:
    """Blocks of the cache that belong to requests, by the engine's own account."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    # One block is nobody's and is never given out.
    owned: int = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    return owned


@pytest.mark.parametrize(
    ("name", "sharing"),
    [("quest", False), *([("sink", True), ("infllm", True), ("sink", False)] if LONG else [])],
)
def test_little_memory_aborts_and_blocks(reasoner: Any, name: str, sharing: bool) -> None:
    """Requests that are put back are read again with what they had generated, each token by a query
    of its own; aborted ones leave nothing.
    """
    llm = sparse(
        POLICIES[name],
        num_gpu_blocks_override=24,
        max_model_len=704,
        max_num_batched_tokens=64,
        enable_prefix_caching=sharing,
        disable_log_stats=False,
    )
    values = [FULL if i % 4 == 3 else None for i in range(16)]
    outputs = generated(llm, PROMPTS[:16], values, max_tokens=250)
    metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    assert metrics["vllm:num_preemptions"] > 3
    backend = attention.get(POLICIES[name])
    expected = decoded(reasoner, PROMPTS[:16], backend=backend, max_new_tokens=250)
    plain = decoded(reasoner, PROMPTS[:16], max_new_tokens=250)
    assert outputs == [
        full if extra else ids for ids, full, extra in zip(expected, plain, values, strict=True)
    ]
    for at in range(6):  # some that are aborted
        llm.llm_engine.add_request(f"request {at}", PROMPTS[at], vllm.SamplingParams())
    for _ in range(9):
        llm.llm_engine.step()
    llm.llm_engine.abort_request([f"request {at}" for at in range(6)])
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    assert blocks_owned(llm) == 0
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        assert (manager.requests, len(manager.req_to_blocks)) == ({}, 0)
    shut(llm)


@pytest.mark.parametrize("sharing", [True, False])
def test_blocks_are_given_back_and_a_request_is_looked_up_by_its_prompt(sharing: bool) -> None:
    """Two blocks of sinks, the window's four, and that of the step."""
    llm = sparse('sink(budget=192, sinks=64, positions="absolute")', enable_prefix_caching=sharing)
    prompt, tokens = len(llm.get_tokenizer()(PROMPTS[0]).input_ids), 300
    every = -(-(prompt + tokens - 1) // 32)
    requests = llm.llm_engine.engine_core.engine_core.scheduler.requests
    for extra in (None, FULL):
        params = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra
        )
        llm.llm_engine.add_request("request", PROMPTS[0], params)
        most = hashes = 0
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            most = max(most, blocks_owned(llm))
            hashes = max([hashes, *(len(request.block_hashes) for request in requests.values())])
        # Without sharing nobody tells a manager which requests are read in part.
        assert most == (7 if sharing and extra is None else every)
        if sharing:
            assert (hashes == prompt // 32) == (extra is None)
    assert blocks_owned(llm) == 0
    shut(llm)


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ({"attention": "window(budget=64, dense_layers=5)"}, {}, "fewer than the model's 5"),
        ({"attention": "window(budget=64)"}, {"worker_cls": "auto"}, "--worker-cls lil"),
    ],
)
def test_a_server_that_cannot_do_what_it_is_told_does_not_start(
    values: Any, more: Any, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        sparse("", **{"additional_config": {"lil": values}} | more)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("speculative_config", SimpleNamespace(method="ngram"), "speculative_config = 'ngram'"),
        ("kv_transfer_config", SimpleNamespace(kv_connector="Nixl"), "kv_transfer_config"),
        ("use_v2_model_runner", True, "runner = 'V2'"),
        ("parallel_config", SimpleNamespace(tensor_parallel_size=2), "tensor_parallel_size = 2"),
        ("cache_config", SimpleNamespace(cache_dtype="fp8"), "kv_cache_dtype = 'fp8'"),
        ("model_config", SimpleNamespace(use_mla=True, model="a model"), "MLA"),
    ],
)
def test_settings_under_which_nobody_compared_tokens_are_refused(
    name: str, value: Any, message: str
) -> None:
    from lil.serving.vllm.sparse.planner import policy_for

    config: Any = SimpleNamespace(
        additional_config={"lil": {"attention": "window(budget=64)"}},
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=32),
        model_config=SimpleNamespace(use_mla=False, model="a model"),
        speculative_config=None,
        kv_transfer_config=None,
        use_v2_model_runner=False,
    )
    assert policy_for(config).window == 64
    setattr(config, name, value)
    with pytest.raises(InvalidValue, match=message):
        policy_for(config)

"""What happens to a server with sparse attention: little memory, aborts, HTTP, and what it holds.

In an environment of its own, see `scripts/test_vllm`; with LONG=1 with more and longer requests.
"""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from test_vllm_sparse import CHECKS, FULL, POLICIES, WORKER, sparse  # noqa: E402
from vllm_runs import LONG, PROMPTS, SHORT, ours, theirs  # noqa: E402
from vllm_server import Server  # noqa: E402

import attention  # noqa: E402
import lil  # noqa: E402

pytestmark = pytest.mark.slow

#: Requests that want more memory than there is: how many, of how many tokens, in how many blocks.
N, CAP, LENGTH, BLOCKS = (24, 500, 1024, 40) if LONG else (16, 250, 704, 24)
CHURN = 2000 if LONG else 100


def blocks_held(llm: vllm.LLM) -> int:
    """Blocks of the cache that belong to requests, by the engine's own account."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    # One block stands for none and is never given out.
    held: int = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    return held


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("name", ["sink", "sink, dense", "quest", "infllm"])
def test_requests_that_are_put_back_for_want_of_memory(reasoner, name, sharing):
    """They are read again with what they had generated, each token by a query of its own."""
    policy = POLICIES[name]
    # Layers of two kinds hold blocks of their own.
    blocks = 3 * BLOCKS if "dense" in name else BLOCKS
    llm = sparse(
        policy,
        num_gpu_blocks_override=blocks,
        max_model_len=LENGTH,
        max_num_batched_tokens=64,
        enable_prefix_caching=sharing,
        disable_log_stats=False,
    )
    prompts = PROMPTS[:N]
    asked = [FULL if i % 4 == 3 else None for i in range(N)]
    found = theirs(llm, prompts, asked, max_tokens=CAP)
    counted = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    held = blocks_held(llm)
    llm.llm_engine.engine_core.shutdown()
    assert counted["vllm:num_preemptions"] > 3
    expected = ours(reasoner, prompts, backend=attention.get(policy), max_new_tokens=CAP)
    plain = ours(reasoner, prompts, max_new_tokens=CAP)
    assert found == [
        two if given else one for one, two, given in zip(expected, plain, asked, strict=True)
    ]
    assert held == 0


def most_held(llm: vllm.LLM, extra: Any, tokens: int) -> int:
    """The most blocks that a request holds."""
    params = vllm.SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra
    )
    llm.llm_engine.add_request("one", PROMPTS[0], params)
    most = 0
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
        most = max(most, blocks_held(llm))
    return most


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize(
    ("policy", "groups", "kept"),
    [
        # Two blocks of sinks, the window's, the two it may begin and end in, and that of the step.
        ('sink(budget=192, sinks=64, positions="absolute")', 1, 2 + 128 // 32 + 1),
        ("window(budget=100)", 1, 5),
        ("quest(budget=128, dense_layers=0)", 1, None),
    ],
)
def test_blocks_are_given_back(policy, groups, kept, sharing):
    llm = sparse(policy, enable_prefix_caching=sharing)
    tokens = 500
    all_of_it = -(-(len(llm.get_tokenizer()(PROMPTS[0]).input_ids) + tokens - 1) // 32) * groups
    # Without sharing nobody tells a manager which requests are read in part.
    expected = kept if sharing and kept else all_of_it
    assert most_held(llm, None, tokens) == expected
    assert most_held(llm, FULL, tokens) == all_of_it
    assert blocks_held(llm) == 0
    llm.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("name", ["sink", "quest"])
def test_many_short_requests_lose_no_block(name, sharing):
    """Some are aborted, some put back; memory for half the load."""
    llm = sparse(
        POLICIES[name],
        num_gpu_blocks_override=34,
        max_model_len=1024,
        enable_prefix_caching=sharing,
    )
    drawn = random.Random(0)
    running: list[str] = []
    made = 0
    while made < CHURN or llm.llm_engine.has_unfinished_requests():
        while made < CHURN and len(running) < 16:
            extra = drawn.choice([None, None, FULL])
            params = vllm.SamplingParams(
                temperature=1, seed=made, max_tokens=drawn.randrange(1, 250), extra_args=extra
            )
            running.append(f"request {made}")
            llm.llm_engine.add_request(running[-1], drawn.choice(PROMPTS), params)
            made += 1
        done = [one.request_id for one in llm.llm_engine.step() if one.finished]
        running = [one for one in running if one not in done]
        if running and drawn.random() < 0.02:
            llm.llm_engine.abort_request([running.pop(drawn.randrange(len(running)))])
    assert blocks_held(llm) == 0
    managers = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    for manager in managers.coordinator.single_type_managers:
        assert not manager.told
        assert not manager.in_full
        assert not manager.req_to_blocks
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def decoded(reasoner: Any) -> dict[str, list[list[int]]]:
    """By `lil.decode`, before there is a server, which would take the cores."""
    policy = attention.get(POLICIES["quest"])
    return {
        "quest": ours(reasoner, PROMPTS, max_new_tokens=SHORT, backend=policy),
        "full": ours(reasoner, PROMPTS, max_new_tokens=SHORT),
        "lz": ours(
            reasoner,
            PROMPTS,
            max_new_tokens=SHORT,
            backend=policy,
            penalties=[lil.LZPenalty(alpha=1.5)],
        ),
    }


@pytest.fixture(scope="module")
def server(
    decoded: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Path]]:
    del decoded
    folder = tmp_path_factory.mktemp("sparse")
    read, metrics = folder / "read.jsonl", folder / "metrics"
    metrics.mkdir()
    values = {"attention": POLICIES["quest"], "attention_file": str(read)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", str(metrics))
        one = Server(
            folder,
            *("--worker-cls", WORKER, "--block-size", "32"),
            *(
                "--logits-processors",
                "lil.serving.vllm:LZPenalty",
                "lil.serving.vllm:StopOn",
                CHECKS,
            ),
            *("--additional-config", json.dumps({"lil": values})),
        )
    yield one, read
    one.stop()


def test_sixty_four_over_http_at_once(server, decoded):
    """Sparse requests, those in full, and sparse ones with a penalty, side by side."""
    kinds: list[tuple[str, Any]] = [("quest", None), ("full", FULL), ("lz", {"lz_alpha": 1.5})]

    def complete(at: int) -> list[int]:
        more = {"max_tokens": SHORT, "return_token_ids": True}
        status, answer = server[0].complete(PROMPTS[at], kinds[at % 3][1], **more)
        assert status == 200
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(complete, range(64)))
    assert found == [decoded[kinds[at % 3][0]][at] for at in range(64)]
    # The last requests are told of in the step after them.
    assert server[0].complete(PROMPTS[0], max_tokens=2)[0] == 200
    assert server[0].complete(PROMPTS[0], max_tokens=2)[0] == 200
    told = [json.loads(line) for line in server[1].read_text().splitlines()]
    assert len(told) >= 64
    assert {one["queries"] for one in told if one["keys_read"] == one["keys_of_full"]}
    assert any(one["keys_read"] < one["keys_of_full"] for one in told)
    with urllib.request.urlopen(f"http://127.0.0.1:{server[0].port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    counted = {
        line.split("{")[0].split(" ")[0]: float(line.split(" ")[-1])
        for line in lines
        if line.startswith("lil:")
    }
    assert counted["lil:sparse_queries_total"] >= sum(one["queries"] for one in told)
    assert counted["lil:sparse_keys_read_total"] < counted["lil:sparse_keys_of_full_total"]


def test_wrong_values_over_http(server):
    status, answer = server[0].complete(PROMPTS[0], {"attention": "ful"})
    assert status == 400
    assert "did you mean 'full'" in answer["error"]["message"]
    assert server[0].complete(PROMPTS[0], max_tokens=3)[0] == 200


def test_a_request_that_is_put_back_is_looked_up_by_its_prompt_alone():
    """Or it would find what another, whose prompt says the same, read in full."""
    llm = sparse(POLICIES["quest"])
    prompt = len(llm.get_tokenizer()(PROMPTS[0]).input_ids)
    for extra, tokens in ((None, prompt), (FULL, prompt + 200)):
        params = vllm.SamplingParams(
            temperature=0, max_tokens=250, ignore_eos=True, extra_args=extra
        )
        llm.llm_engine.add_request("one", PROMPTS[0], params)
        requests = llm.llm_engine.engine_core.engine_core.scheduler.requests
        for _ in range(201):
            llm.llm_engine.step()
        (request,) = requests.values()
        assert request.num_output_tokens >= 200
        assert len(request.block_hashes) == tokens // 32
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
    llm.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize("name", ["sink", "window", "quest", "infllm"] if LONG else ["sink"])
def test_each_policy_over_http(reasoner, tmp_path, name):
    expected = ours(reasoner, PROMPTS, max_new_tokens=SHORT, backend=attention.get(POLICIES[name]))
    values = json.dumps({"lil": {"attention": POLICIES[name]}})
    one = Server(
        tmp_path,
        *("--worker-cls", WORKER, "--block-size", "32"),
        *("--logits-processors", CHECKS, "--additional-config", values),
    )

    def complete(prompt: str) -> list[int]:
        status, answer = one.complete(prompt, max_tokens=SHORT, return_token_ids=True)
        assert status == 200
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    try:
        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(complete, PROMPTS)) == expected
    finally:
        one.stop()

"""Sparse attention inside vLLM, offline: the tokens of each policy are `lil.decode`'s.

In an environment of its own, see `scripts/test_vllm`. Eight places, prompts read in pieces of 64
tokens beside decode queries of others, prefixes shared, penalties and detectors loaded. 24 prompts
and 160 tokens, or, with LONG=1, 64 and 600.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from vllm_runs import CAP as LONGEST  # noqa: E402
from vllm_runs import LONG, PROCESSORS, PROMPTS, engine, ours, theirs  # noqa: E402

import attention  # noqa: E402
import lil  # noqa: E402
from attention.errors import InvalidValue  # noqa: E402

pytestmark = pytest.mark.slow

WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"
CHECKS = "lil.serving.vllm.sparse.processor:Attention"
FULL = {"attention": "full"}
N, CAP = (64, LONGEST) if LONG else (24, 160)

POLICIES = {
    "sink": 'sink(budget=140, sinks=32, positions="absolute")',
    "sink, dense": 'sink(budget=128, sinks=64, positions="absolute", dense_layers=2)',
    "window": "window(budget=150)",
    "quest": "quest(budget=128, page=32, dense_layers=0)",
    "quest, dense": 'quest(budget=64, page=32, gqa="max")',
    "infllm": (
        "infllm(budget=160, block=32, n_init=32, topk=2, repr_topk=32, "
        'far_position="absolute")'
    ),
    "infllm, heads": (
        "infllm(budget=160, block=32, n_init=32, n_local=20, topk=2, repr_topk=32, dense_layers=1, "
        'far_position="absolute", selection="kv_head")'
    ),
}  # fmt: skip


def sparse(text: str, **more: Any) -> vllm.LLM:
    given: dict[str, Any] = {
        "worker_cls": WORKER,
        "block_size": 32,
        "logits_processors": [*PROCESSORS, CHECKS],
        "additional_config": {"lil": {"attention": text}},
        "enable_prefix_caching": True,
    }
    return engine(**given | more)


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: Any) -> str:
    return POLICIES[request.param]


@pytest.fixture(scope="module")
def served(policy: str) -> Iterator[vllm.LLM]:
    llm = sparse(policy, max_num_batched_tokens=64, enable_chunked_prefill=True)
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def plain(reasoner: Any) -> list[list[int]]:
    return ours(reasoner, PROMPTS[:N], max_new_tokens=CAP)


def test_tokens_are_those_of_decode_and_of_requests_in_full_those_without(
    served, policy, reasoner, plain
):
    expected = ours(reasoner, PROMPTS[:N], backend=attention.get(policy), max_new_tokens=CAP)
    assert sum(one != two for one, two in zip(expected, plain, strict=True)) > N // 4
    # Every fourth prompt a second time, in full: prompts are shared, what follows is not.
    asked = [(i, given) for i in range(N) for given in [None, FULL][: 1 + (i % 4 == 0)]]
    prompts = [PROMPTS[i] for i, _ in asked]
    found = theirs(served, prompts, [given for _, given in asked], max_tokens=CAP)
    ties = 0
    for tokens, (i, given) in zip(found, asked, strict=True):
        mine = (plain if given else expected)[i]
        if tokens != mine:
            assert is_tie(served, PROMPTS[i], given, tokens, mine)
            ties += 1
    assert ties <= 1


def is_tie(llm: vllm.LLM, prompt: str, extra: Any, found: list[int], mine: list[int]) -> bool:
    """Whether two texts part at a token where both were as likely, to the rounding of float32."""
    at = next(i for i, (one, two) in enumerate(zip(found, mine, strict=False)) if one != two)
    params = vllm.SamplingParams(
        temperature=0, max_tokens=at + 1, logprobs=2, extra_args=extra, ignore_eos=True
    )
    (out,) = llm.generate([prompt], params, use_tqdm=False)
    scores = out.outputs[0].logprobs[at]
    return mine[at] in scores and scores[found[at]].logprob - scores[mine[at]].logprob < 2e-5


def test_beside_penalties_and_detectors(served, policy, reasoner):
    prompts = PROMPTS[:8]
    extra = {"lz_alpha": 1.5, "stop_on": "cycle;budget(tokens=150):answer", "stop_on_tokens": 40}
    watch = [lil.Cycle(), lil.Budget(tokens=150, on_stop=lil.detectors.Answer(tokens=40))]
    expected = ours(
        reasoner,
        prompts,
        backend=attention.get(policy),
        penalties=[lil.LZPenalty(alpha=1.5)],
        detectors=watch,
    )
    assert theirs(served, prompts, [extra] * 8) == expected


def test_a_prompt_that_says_what_was_generated_is_read_in_full(served, policy, reasoner):
    """Keys of generated tokens are those of sparse queries, and no prompt's."""
    tokenizer = reasoner[1]
    first = theirs(served, PROMPTS[:6], [None] * 6, max_tokens=120)
    longer = [
        tokenizer(one).input_ids + two[:100] for one, two in zip(PROMPTS, first, strict=False)
    ]
    longer = [ids for ids in longer if tokenizer.eos_token_id not in ids]
    assert len(longer) > 1
    expected = ours(reasoner, longer, backend=attention.get(policy), max_new_tokens=100)
    prompts = [{"prompt_token_ids": ids} for ids in longer]
    assert theirs(served, prompts, [None] * len(longer), max_tokens=100) == expected


def test_keys_read_are_those_of_decode(served, policy, reasoner):
    (trace,) = lil.decode(
        *reasoner, PROMPTS[2:3], max_new_tokens=CAP, backend=attention.get(policy)
    )
    before = served.collective_rpc("keys_read")[0]["total"]
    theirs(served, PROMPTS[2:3], [None], max_tokens=CAP)
    after = served.collective_rpc("keys_read")[0]["total"]
    queries = after["queries"] - before["queries"]
    layers, dense = 5, attention.get(policy).dense_layers
    assert queries == len(trace.new_ids) - 1
    read = (after["keys_read"] - before["keys_read"]) / queries
    mine = (layers - dense) * trace.keys_read_mean + dense * (trace.dense_layer_keys_read_mean or 0)
    assert read == pytest.approx(mine)
    full = (after["keys_of_full"] - before["keys_of_full"]) / queries
    prompt = len(reasoner[1](PROMPTS[2]).input_ids)
    assert full == layers * (prompt + (queries + 1) / 2)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"attention": "ful"}, "did you mean 'full'"),
        ({"attention": "quest(budget=64)"}, "the method is the server's"),
        ({"attention_": "full"}, "attention: another spelling"),
    ],
)
def test_a_request_for_another_attention_is_refused(served, extra, message):
    with pytest.raises(vllm.exceptions.VLLMValidationError, match=message):
        theirs(served, PROMPTS[:1], [extra])


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ({"attention": "sink(budget=128)"}, {}, "'absolute': an engine stores keys"),
        ({"attention": "quest(budget=256, page=16)"}, {}, "32, the engine's block"),
        ({"attention": "h2o(budget=64)"}, {}, "one of infllm, quest, sink, window"),
        ({"attention": "window(budget=64, dense_layers=5)"}, {}, "fewer than the model's 5"),
        ({}, {}, "a method with its parameters"),
        ({"attention": "window(budget=64)"}, {"worker_cls": "auto"}, "--worker-cls lil"),
    ],
)
def test_a_server_that_cannot_do_what_it_is_told_does_not_start(given, more, message):
    with pytest.raises(InvalidValue, match=message):
        sparse("", **{"additional_config": {"lil": given}} | more)


def test_a_plain_engine_in_the_same_process_stays_plain(reasoner):
    llm = sparse("window(budget=40)")
    other = engine()
    found = theirs(other, PROMPTS[:4], [None] * 4, max_tokens=100)
    assert found == ours(reasoner, PROMPTS[:4], max_new_tokens=100)
    narrow = ours(
        reasoner, PROMPTS[:4], max_new_tokens=100, backend=attention.get("window(budget=40)")
    )
    assert theirs(llm, PROMPTS[:4], [None] * 4, max_tokens=100) == narrow != found
    for one in (llm, other):
        one.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize(
    ("where", "name", "value", "field"),
    [
        ("", "speculative_config", SimpleNamespace(method="ngram"), "speculative_config = 'ngram'"),
        ("", "kv_transfer_config", SimpleNamespace(kv_connector="Nixl"), "kv_transfer_config"),
        ("", "use_v2_model_runner", True, "runner = 'V2'"),
        ("parallel_config", "tensor_parallel_size", 2, "tensor_parallel_size = 2"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline_parallel_size = 2"),
        ("parallel_config", "decode_context_parallel_size", 2, "decode_context_parallel_size = 2"),
        ("cache_config", "cache_dtype", "fp8", "kv_cache_dtype = 'fp8'"),
        ("model_config", "use_mla", True, "MLA"),
    ],
)
def test_what_nobody_has_seen_to_be_right_is_refused(where, name, value, field):
    from lil.serving.vllm.sparse.settings import policy_for

    config = SimpleNamespace(
        additional_config={"lil": {"attention": "window(budget=64)"}},
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=32),
        model_config=SimpleNamespace(use_mla=False, model="a model"),
        speculative_config=None,
        kv_transfer_config=None,
        use_v2_model_runner=False,
    )
    assert policy_for(config).window == 64
    setattr(getattr(config, where) if where else config, name, value)
    with pytest.raises(InvalidValue, match=field):
        policy_for(config)


@pytest.mark.parametrize("name", ["sink", "quest"])
def test_a_compiled_model_has_the_same_tokens(reasoner, name):
    llm = sparse(POLICIES[name], enforce_eager=False)
    found = theirs(llm, PROMPTS[:8], [None] * 8, max_tokens=CAP)
    llm.llm_engine.engine_core.shutdown()
    mine = attention.get(POLICIES[name])
    assert found == ours(reasoner, PROMPTS[:8], backend=mine, max_new_tokens=CAP)

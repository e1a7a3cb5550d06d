"""What the engine's own cache manager does with the blocks of sparse layers, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from lil.serving.blocks.policies import policy_of
from lil.serving.vllm.sparse.cache import GivenBackManager, GivenBackSpec, KeptManager, KeptSpec

BLOCK, PROMPT, TURN = 32, 100, 300
SPARSE = SamplingParams(max_tokens=50)
FULL = SamplingParams(max_tokens=50, extra_args={"attention": "full"})


def manager(kind: type[KeptSpec | GivenBackSpec], text: str) -> KVCacheManager:
    plain = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    spec = kind.of(plain, policy_of(text, BLOCK))
    config = KVCacheConfig(
        num_blocks=100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["0"], spec)]
    )
    return KVCacheManager(
        config, max_model_len=2048, scheduler_block_size=BLOCK, hash_block_size=BLOCK,
        enable_caching=True,
    )  # fmt: skip


def session(blocks: KVCacheManager, first: SamplingParams, then: SamplingParams) -> Request:
    """A request that is read, writes 40 tokens, and is given more to read."""
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    request = Request("a", [*range(PROMPT)], first, None, block_hasher=hasher, resumable=True)
    shared, computed, _ = blocks.get_computed_blocks(request)
    assert blocks.allocate_slots(request, PROMPT, computed, shared) is not None
    request.num_computed_tokens = PROMPT
    request.append_output_token_ids(7)
    for token in range(40):
        assert blocks.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
        request.append_output_token_ids(8 + token)
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    update = StreamingUpdate(
        mm_features=None, prompt_token_ids=[*range(TURN, TURN + 100)], max_tokens=50,
        arrival_time=0.0, sampling_params=then,
    )  # fmt: skip
    scheduler: Any = SimpleNamespace(
        hash_block_size=BLOCK, num_waiting_for_streaming_input=1, log_stats=False
    )
    Scheduler._update_request_as_session(scheduler, request, update)
    assert blocks.allocate_slots(request, request.num_tokens - request.num_computed_tokens)
    return request


@pytest.mark.parametrize(
    ("kind", "text"), [(KeptSpec, "quest(budget=64)"), (GivenBackSpec, "window(budget=64)")]
)
@pytest.mark.parametrize("then", [SPARSE, FULL])
def test_a_session_shares_its_first_prompt_and_keeps_all_blocks(
    kind: type[KeptSpec | GivenBackSpec], text: str, then: SamplingParams
) -> None:
    """Its prompt grows by tokens whose keys sparse queries made, and is read over all blocks."""
    blocks = manager(kind, text)
    request = session(blocks, SPARSE, then)
    assert request.num_prompt_tokens > PROMPT + 100
    assert len(request.block_hashes) == PROMPT // BLOCK
    owned = blocks.get_blocks("a").blocks[0]
    assert not any(block.is_null for block in owned)
    assert sum(block.block_hash is not None for block in owned) == PROMPT // BLOCK
    blocks.free(request)
    (own,) = blocks.coordinator.single_type_managers
    assert own.requests == {}


def test_blocks_are_shared_whole_or_not_at_all() -> None:
    for kind in (KeptManager, GivenBackManager):
        assert not kind.supports_fine_grained_hash_lookup

"""How the engine keeps the blocks of sparse layers: what is shared and what is given back.

Keys of generated tokens were made by sparse queries. Another request whose prompt says the same
reads it in full and has other keys, so only what was read in full is shared by prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from lil.serving.blocks.policies import BlockPolicy
from lil.serving.vllm.requests import in_full


@dataclass(frozen=True, kw_only=True)
class _Spec(FullAttentionSpec):
    """Full attention's cache, of a model in which some layers are sparse under this policy."""

    policy: BlockPolicy = field()

    @classmethod
    def of(cls, spec: FullAttentionSpec, policy: BlockPolicy) -> Self:
        sparse: Self = replace_as(spec, cls, policy=policy)
        return sparse

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """One for layers that all have the same; the engine asks whether they have."""
        if any(spec != specs[0] for spec in specs):
            raise AssertionError("layers of a group of the cache have the same policy")
        return specs[0]


class KeptSpec(_Spec):
    """Blocks stay until their request ends."""


class GivenBackSpec(_Spec):
    """Blocks that the policy never reads again are given back."""


@dataclass
class _State:
    """A request: the tokens of its first prompt (a session's prompt grows by what it wrote),
    whether it is read in full, and whether it may get more to read, over all that there was.
    """

    prompt: int
    full: bool
    resumable: bool = False


class KeptManager(FullAttentionManager):
    """Shares by prefix what was read in full alone."""

    #: No hit inside a block, whose tail would be copied: a block's summary is of all its tokens and
    #: does not come with a copy.
    supports_fine_grained_hash_lookup = False

    def __init__(self, kv_cache_spec: _Spec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self.policy = kv_cache_spec.policy
        self.requests: dict[str, _State] = {}

    def cache_blocks(
        self, request: Request, num_tokens: int, retention_interval: int | None = None, **more: Any
    ) -> None:
        name, full = request.request_id, in_full(request.sampling_params)
        state = self.requests.setdefault(name, _State(request.num_prompt_tokens, full))
        state.resumable |= request.resumable
        state.full &= full  # also of a session whose next part does not ask for it any more
        if not state.full:
            _hash_only(request, state.prompt, self.block_pool.hash_block_size)
            num_tokens = min(num_tokens, state.prompt)
        super().cache_blocks(request, num_tokens, retention_interval, **more)

    def pop_blocks_for_free(self, request_id: str) -> Any:
        self.requests.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)


class GivenBackManager(KeptManager):
    """Gives back what the policy never reads again, once the prompt has been read.

    Without prefix caching the engine does not show its managers a request, so that nobody knows
    which may be read in part: then nothing is given back.
    """

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        if num_prompt_tokens is None or processed_computed_tokens < num_prompt_tokens:
            return
        state = self.requests.get(request_id)
        if state is None or state.full or state.resumable:
            return
        # The next query sees one token more than have been computed.
        start, end = self.policy.gap(np.array([processed_computed_tokens + 1]))
        self._remove_blocks_in_range(request_id, int(start[0]), int(end[0]))


class _FirstHashes:
    """Hashes of a request's first `most` blocks alone."""

    def __init__(self, hashes: Any, most: int) -> None:
        self.hashes, self.most = hashes, most

    def __call__(self, request: Request) -> Sequence[Any]:
        room = self.most - len(request.block_hashes)
        return self.hashes(request)[:room] if room > 0 else []


def _hash_only(request: Request, tokens: int, block: int) -> None:
    """Let a request be looked up by its first tokens alone.

    One that was put back is looked up with all its tokens, and would match those that another read
    in full.
    """
    if not isinstance(request._block_hasher, _FirstHashes):
        request._block_hasher = _FirstHashes(request._block_hasher, tokens // block)
        del request.block_hashes[tokens // block :]


def register() -> None:
    """Tell the engine which manager a cache has; once is as good as twice."""
    # It registers its own at the first call, and not at all if somebody was there before.
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    for spec, manager in ((KeptSpec, KeptManager), (GivenBackSpec, GivenBackManager)):
        KVCacheSpecRegistry.register(spec, manager, uniform_type_base_spec=spec)


# A scheduler in another process than the worker meets these when it reads what the worker says.
register()

"""The form for GPUs in vLLM's own classes, on a CPU, where its kernel is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from paged_flash import described, layer_of  # noqa: E402
from test_flash_layers import BLOCK, HKV, POLICIES, ROPE, D, G, Request, step_of  # noqa: E402
from test_serving_blocks import text  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends import flash_attn  # noqa: E402

from attention.errors import InvalidValue  # noqa: E402
from lil.serving.blocks.policies import policy_of  # noqa: E402
from lil.serving.vllm.sparse.gpu_worker import (  # noqa: E402
    FlashBuilder,
    FlashImpl,
    GPUWorker,
    check_flash,
)

POOL = 40


def impl_of(policy: Any, **more: Any) -> FlashImpl:
    own = flash_attn.FlashAttentionImpl(HKV * G, D, D**-0.5, HKV, None, None, "auto")
    own.vllm_flash_attn_version = 3  # of a GPU; here there is none
    own.__dict__.update(more)
    return FlashImpl.of(own, policy, ROPE)


def builder_of(policy: Any, rows: list[Request]) -> FlashBuilder:
    """A builder as it is once an engine has begun."""
    builder = FlashBuilder.__new__(FlashBuilder)
    own = {"aot_schedule": False, "aot_sliding_window": None, "use_full_cuda_graph": False}
    none = dict.fromkeys(("max_cudagraph_size", "rswa_window", "mm_prefix_query_ranges_np"))
    builder.__dict__.update(**own, **none, dcp_world_size=1)
    builder.kv_cache_spec = SimpleNamespace(num_kv_heads=HKV)
    builder.policy, builder.reads = policy, None
    prompts, full = ([getattr(request, name) for request in rows] for name in ("prompt", "whole"))
    names = [str(i) for i in range(len(rows))]
    builder.rows = SimpleNamespace(of=lambda _: (names, np.array(prompts), np.array(full)))
    return builder


def common_of(rows: list[Request], new: Any, meta: Any) -> CommonAttentionMetadata:
    past = torch.tensor([request.past for request in rows], dtype=torch.int32)
    seen = (past + torch.from_numpy(new)).int()
    starts = torch.from_numpy(np.r_[0, np.cumsum(new)].astype(np.int32))
    owned = torch.zeros(len(rows), max(len(r.owned) for r in rows), dtype=torch.int32)
    for row, request in enumerate(rows):
        owned[row, : len(request.owned)] = torch.tensor(request.owned)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seen,
        seq_lens_cpu_upper_bound=seen,
        num_reqs=len(rows),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(new.max()),
        max_seq_len=int(seen.max()),
        block_table_tensor=owned,
        slot_mapping=meta.slot_mapping,
    )


@pytest.mark.parametrize("kind", POLICIES)
def test_the_engines_own_builder_and_layer_do_what_the_form_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of decode queries beside parts of prompts, one of queries alone, one without any."""
    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", described, raising=False)
    torch.manual_seed(1)
    policy = policy_of(text(*POLICIES[kind]), BLOCK)
    decoding, prefill = [Request(60, 90, 100), Request(40, 97, 100)], Request(80, 80, 100)
    free = torch.randperm(POOL).tolist()
    for request in (*decoding, prefill):
        request.past, request.owned = request.known - 1, [free.pop() for _ in range(7)]
    prefill.past = 30
    cache = torch.randn(POOL, HKV, BLOCK, 2 * D)
    scales = SimpleNamespace(**dict.fromkeys(("_q_scale", "_k_scale", "_v_scale"), torch.ones(1)))
    for rows, count in (([*decoding, prefill], [3, 1, 20]), (decoding, [1, 1]), ([prefill], [20])):
        new = np.array(count)
        expected = step_of(rows, new, policy)
        form, impl = layer_of(described, policy, ROPE, HKV, G, D), impl_of(policy)
        if policy.best:
            known = torch.randn_like(form.remember(cache).data)
            for layer in (form, impl):
                layer.remember(cache).data.copy_(known)
        meta = builder_of(policy, rows).build(0, common_of(rows, new, expected))
        assert (meta.sparse is None) == (rows == [prefill])
        q, k = torch.randn(int(new.sum()), HKV * G, D), torch.randn(int(new.sum()), HKV, D)
        left, right = torch.zeros_like(q), torch.zeros_like(q)
        form.forward(scales, q, k, k, cache, expected, left)
        assert impl.forward(scales, q, k, k, cache, meta, right) is right
        assert torch.equal(left, right)
        assert right.abs().sum(-1).all()


def config(block: int = 16, layout: str | None = None, dbo: bool = False, **model: Any) -> Any:
    values = {"model": "m", "is_mm_prefix_lm": False, "is_diffusion": False, "rswa_window": None}
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block, kv_cache_layout=layout),
        parallel_config=SimpleNamespace(use_ubatching=dbo),
        model_config=SimpleNamespace(**values | model),
    )


@pytest.mark.parametrize(
    ("settings", "requested", "message"),
    [
        (config(24), None, "block_size = 24: expected a multiple of 16"),
        (config(), "NHD", "VLLM_KV_CACHE_LAYOUT=HND"),
        (config(layout="BLHNC"), None, "kv_cache_layout = 'BLHNC'"),
        (config(dbo=True), None, "enable_dbo"),
        (config(rswa_window=5), None, "model = 'm'"),
    ],
)
def test_what_the_form_cannot_do_is_refused(
    settings: Any, requested: str | None, message: str
) -> None:
    check_flash(config(32, "LBHNC"), "HND")
    with pytest.raises(InvalidValue) as caught:
        check_flash(settings, requested)
    assert message in str(caught.value)


def test_other_layers_kernels_and_devices_are_refused() -> None:
    for field, value in (("fa4_hd256", True), ("kv_cache_dtype", "fp8"), ("sinks", "some")):
        with pytest.raises(InvalidValue):
            impl_of(policy_of("window(budget=32)", BLOCK), **{field: value})
    layer = SimpleNamespace(attn_backend=SimpleNamespace(get_name=lambda: "FLASHINFER"))
    with pytest.raises(InvalidValue, match="--attention-backend FLASH_ATTN"):
        GPUWorker.check_layer(None, layer)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="device"):
        GPUWorker(SimpleNamespace())

"""The form for GPUs in vLLM's own classes, on a CPU, where its kernel is a stand-in."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from paged_flash import flash_attn_varlen_func  # noqa: E402
from test_flash_layers import (  # noqa: E402
    BLOCK,
    HKV,
    POLICIES,
    ROPE,
    D,
    G,
    Life,
    Standing,
    layer_of,
    step_of,
)
from test_serving_blocks import text  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends import flash_attn  # noqa: E402
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

from attention.errors import InvalidValue  # noqa: E402
from lil.serving.blocks import policy_of  # noqa: E402
from lil.serving.vllm.sparse.flash import (  # noqa: E402
    FlashBackend,
    FlashBuilder,
    FlashImpl,
    check_flash,
)
from lil.serving.vllm.sparse.gpu_worker import GPUWorker  # noqa: E402
from tests.waits import Guard  # noqa: E402

POOL = 40


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM has the kernel on GPUs alone."""
    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", flash_attn_varlen_func, raising=False)


def impl_of(policy: Any, **more: Any) -> FlashImpl:
    own = flash_attn.FlashAttentionImpl(HKV * G, D, 0.4, HKV, None, None, "auto")
    own.vllm_flash_attn_version = 3  # of a GPU; here there is none
    own.__dict__.update(more)
    return FlashImpl.of(own, policy, ROPE)


def builder_of(policy: Any, rows: list[Life]) -> FlashBuilder:
    """One as it is once an engine has begun."""
    made = FlashBuilder.__new__(FlashBuilder)
    own = {"aot_schedule": False, "aot_sliding_window": None, "use_full_cuda_graph": False}
    none = dict.fromkeys(("max_cudagraph_size", "rswa_window", "mm_prefix_query_ranges_np"))
    made.__dict__.update(**own, **none, dcp_world_size=1)
    made.kv_cache_spec = SimpleNamespace(num_kv_heads=HKV)
    made.policy, made.reads = policy, None
    made.rows = SimpleNamespace(
        prompts=lambda n: np.array([one.prompt for one in rows[:n]]),
        whole=lambda n: np.array([one.whole for one in rows[:n]]),
    )
    return made


def common_of(rows: list[Life], new: np.ndarray, meta: Any) -> CommonAttentionMetadata:
    seen = torch.tensor([one.past for one in rows], dtype=torch.int32) + torch.from_numpy(new)
    starts = torch.from_numpy(np.r_[0, np.cumsum(new)].astype(np.int32))
    owned = torch.zeros(len(rows), max(len(one.owned) for one in rows), dtype=torch.int32)
    for row, one in enumerate(rows):
        owned[row, : len(one.owned)] = torch.tensor(one.owned)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seen.int(),
        seq_lens_cpu_upper_bound=seen.int(),
        num_reqs=len(rows),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(new.max()),
        max_seq_len=int(seen.max()),
        block_table_tensor=owned,
        slot_mapping=meta.slot_mapping,
    )


@pytest.mark.parametrize("kind", POLICIES)
def test_the_engines_own_builder_and_layer_do_what_the_form_does(kind: str) -> None:
    """A step of decode queries beside parts of prompts, one of queries alone, one without any."""
    torch.manual_seed(1)
    name, numbers = POLICIES[kind]
    policy = policy_of(text(name, numbers), BLOCK)
    decoding, prefill = [Life(60, 90, 100), Life(40, 97, 100)], Life(80, 80, 100)
    free = torch.randperm(POOL).tolist()
    for one in (*decoding, prefill):
        one.past, one.owned = one.known - 1, [free.pop() for _ in range(7)]
    prefill.past = 30
    shared = torch.randn(POOL, HKV, BLOCK, 2 * D)
    scales = SimpleNamespace(**dict.fromkeys(("_q_scale", "_k_scale", "_v_scale"), torch.ones(1)))
    for rows, count in (([*decoding, prefill], [3, 1, 20]), (decoding, [1, 1]), ([prefill], [20])):
        new = np.array(count)
        expected = step_of(rows, new, policy)
        form, impl = layer_of(Standing, policy, calls=[], guard=Guard()), impl_of(policy)
        if policy.best:
            known = torch.randn_like(form.remember(shared).data)
            for layer in (form, impl):
                layer.remember(shared).data.copy_(known)
        meta = builder_of(policy, rows).build(0, common_of(rows, new, expected))
        assert (meta.sparse is None) == (rows == [prefill])
        q, k = torch.randn(int(new.sum()), HKV * G, D), torch.randn(int(new.sum()), HKV, D)
        ours, theirs = torch.zeros_like(q), torch.zeros_like(q)
        form.forward(scales, q, k, k, shared, expected, ours)
        assert impl.forward(scales, q, k, k, shared, meta, theirs) is theirs
        assert torch.equal(ours, theirs)
        assert theirs.abs().sum(-1).all()


def test_before_there_is_a_cache_nothing_is_read() -> None:
    impl = impl_of(policy_of("quest(budget=32)", BLOCK))
    q = torch.randn(3, HKV * G, D)
    assert not impl.forward(None, q, q, q, torch.empty(0), None, torch.ones_like(q)).any()


def test_before_the_worker_tells_of_rows_all_is_read_in_full() -> None:
    """An engine that measures its memory plans steps before there are requests."""
    policy = policy_of("window(budget=16)", BLOCK)
    rows = [Life(1, 50, 60, past=49, owned=[1, 2, 3, 4])]
    builder = builder_of(policy, rows)
    builder.rows = None
    new = np.array([1])
    meta = builder.build(0, common_of(rows, new, step_of(rows, new, policy)))
    assert meta.sparse is None


def test_the_kernel_takes_these_arguments() -> None:
    # vLLM's module by its path: the package wants the kernels, which are built for GPUs alone.
    path = Path(vllm.__file__).parent / "vllm_flash_attn" / "flash_attn_interface.py"
    spec = importlib.util.spec_from_file_location("flash_attn_interface", path)
    interface = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(interface)
    signature = inspect.signature(interface.flash_attn_varlen_func)
    form = layer_of(Standing, policy_of("window(budget=16)", BLOCK), calls=[], guard=Guard())
    row = Life(1, 50, 60, past=49, owned=[1, 2, 3, 4])
    q = torch.randn(1, HKV * G, D)
    step = step_of([row], np.array([1]), form.policy)
    form.forward(None, q, q, q, torch.randn(8, HKV, BLOCK, 2 * D), step, q.clone())
    (arguments,) = form.calls
    signature.bind(**arguments)
    assert arguments["block_table"].dtype == torch.int32


@pytest.mark.parametrize(
    ("ours", "theirs", "method"),
    [
        (FlashImpl, flash_attn.FlashAttentionImpl, "forward"),
        (FlashBuilder, flash_attn.FlashAttentionMetadataBuilder, "build"),
        (FlashBackend, flash_attn.FlashAttentionBackend, "get_name"),
        (FlashBackend, flash_attn.FlashAttentionBackend, "get_impl_cls"),
        (FlashBackend, flash_attn.FlashAttentionBackend, "get_builder_cls"),
        (FlashBackend, flash_attn.FlashAttentionBackend, "supported_kv_cache_layouts"),
        (GPUWorker, Worker, "determine_available_memory"),
        (GPUWorker, Worker, "initialize_from_config"),
        (GPUWorker, Worker, "execute_model"),
        (GPUWorker, Worker, "get_kv_cache_spec"),
        (GPUWorker, Worker, "shutdown"),
    ],
)
def test_methods_have_the_engines_parameters(ours: Any, theirs: Any, method: str) -> None:
    one, other = (
        list(inspect.signature(getattr(kind, method)).parameters) for kind in (ours, theirs)
    )
    assert one == other


def test_what_a_builder_says_of_graphs_and_other_groups() -> None:
    assert FlashBuilder.get_cudagraph_support(None, None) == AttentionCGSupport.NEVER
    assert not FlashBuilder.supports_update_block_table


def test_the_engine_settles_on_heads_before_tokens() -> None:
    found = get_supported_kv_cache_layouts([flash_attn.FlashAttentionBackend, FlashBackend])
    assert [one.name for one in found] == ["LBHNC"]


def config(block: int = 16, layout: str | None = None, dbo: bool = False, **model: Any) -> Any:
    given = {"model": "m", "is_mm_prefix_lm": False, "is_diffusion": False, "rswa_window": None}
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block, kv_cache_layout=layout),
        parallel_config=SimpleNamespace(use_ubatching=dbo),
        model_config=SimpleNamespace(**given | model),
    )


@pytest.mark.parametrize(
    ("given", "requested", "message"),
    [
        (config(24), None, "block_size = 24: expected a multiple of 16"),
        (config(), "NHD", "VLLM_KV_CACHE_LAYOUT=HND"),
        (config(), "LBNHC", "kv_cache_layout = 'LBNHC'"),
        (config(layout="BLHNC"), None, "kv_cache_layout = 'BLHNC'"),
        (config(dbo=True), None, "enable_dbo"),
        (config(is_mm_prefix_lm=True), None, "model = 'm'"),
        (config(rswa_window=5), None, "model = 'm'"),
    ],
)
def test_what_the_form_cannot_do_is_refused(
    given: Any, requested: str | None, message: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_flash(given, requested)
    assert message in str(caught.value)


def test_what_the_form_can_do() -> None:
    for given in (config(), config(32, "LBHNC")):
        for requested in (None, "HND", "LBHNC"):
            check_flash(given, requested)


@pytest.mark.parametrize(
    ("field", "value"), [("fa4_hd256", True), ("kv_cache_dtype", "fp8"), ("sinks", "some")]
)
def test_layers_that_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidValue):
        impl_of(policy_of("window(budget=32)", BLOCK), **{field: value})


def test_another_kernel_and_another_device_are_refused() -> None:
    layer = SimpleNamespace(attn_backend=SimpleNamespace(get_name=lambda: "FLASHINFER"))
    with pytest.raises(InvalidValue, match="--attention-backend FLASH_ATTN"):
        GPUWorker.check_layer(None, layer)
    if current_platform.is_cuda():
        pytest.skip("there is a GPU")
    with pytest.raises(InvalidValue, match="device"):
        GPUWorker(SimpleNamespace())


def test_memory_is_kept_for_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 numbers of 2 bytes for a token and head beside 2 x 64 of 4 for a block of 16."""
    spec = SimpleNamespace(num_kv_heads=HKV, head_size=64, page_size_bytes=16 * HKV * 128 * 2)
    monkeypatch.setattr(Worker, "determine_available_memory", lambda _: 9000)
    monkeypatch.setattr(GPUWorker, "get_kv_cache_spec", lambda _: {"layer": spec})
    for name, given, expected in (
        ("quest(budget=32)", None, 8000),
        ("quest(budget=32)", 9000, 9000),
        ("window(budget=32)", None, 9000),
    ):
        worker = GPUWorker.__new__(GPUWorker)
        worker.policy, worker.sparse_layers = policy_of(name, BLOCK), {"layer": None}
        worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=given)
        assert worker.determine_available_memory() == expected

"""The worker for GPUs, which makes the layers of its model sparse. It has not run on a GPU so far.

    VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL --attention-backend FLASH_ATTN \
      --worker-cls lil.serving.vllm.sparse.gpu_worker.GPUWorker \
      --additional-config '{"lil": {"attention": "quest(budget=1024)"}}'

A module of its own: vLLM's worker for CPUs, once it is imported, changes torch.
"""

from __future__ import annotations

from typing import Any

from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

from attention.errors import InvalidValue
from lil.serving.vllm.sparse.common_worker import SparseWorker
from lil.serving.vllm.sparse.flash import FlashBackend, check_flash


class GPUWorker(SparseWorker):
    """vLLM's GPU worker, whose model has sparse layers.

    Raises:
        InvalidValue: a policy that cannot be kept, or a device, an engine or a model in which it
            cannot work.
    """

    backend = FlashBackend

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if not current_platform.is_cuda():
            allowed = "cuda; CPUs have lil.serving.vllm.sparse.worker.CPUWorker"
            raise InvalidValue("device", current_platform.device_type, allowed)
        super().__init__(vllm_config, *args, **kwargs)
        check_flash(vllm_config, envs.VLLM_KV_CACHE_LAYOUT)

    def check_layer(self, layer: Any) -> None:
        if layer.attn_backend is not FlashAttentionBackend:
            allowed = (
                "FLASH_ATTN, --attention-backend FLASH_ATTN: another kernel's tables are not ours "
                "to write, and FlashInfer's are the same for all layers of a step"
            )
            raise InvalidValue("attention_backend", layer.attn_backend.get_name(), allowed)

    def determine_available_memory(self) -> int:
        found: int = super().determine_available_memory()
        if not self.policy.best or self.cache_config.kv_cache_memory_bytes:
            return found
        # What is remembered of blocks lies beside the cache and grows with it.
        spec = self.get_kv_cache_spec()[next(iter(self.sparse_layers))]
        beside: int = 4 * spec.num_kv_heads * self.policy.size(spec.head_size)
        page: int = spec.page_size_bytes
        return found * page // (page + beside)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        # Again, since it was settled only now.
        check_flash(self.vllm_config, None)
        if self.policy.best:
            for layer in self.sparse_layers.values():
                layer.impl.remember(layer.kv_cache)

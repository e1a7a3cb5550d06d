"""The form for GPUs: FlashAttention's paged kernel reads the blocks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from lil.serving.blocks.layers import SparseLayer
from lil.serving.blocks.plans import ReadPlan

#: Tokens of a block have to be a multiple of this, the kernel's.
PAGE = 16


class FlashLayer(SparseLayer):
    """`SparseLayer` over `flash_attn_varlen_func` with a table of blocks.

    Attributes:
        flash_version: of the kernel.
        flash_splits: parts in which keys of a request are read; 0 where the kernel may choose.
    """

    flash_version: int | None
    flash_splits: int
    logits_soft_cap: float

    @abstractmethod
    def kernel(self, **arguments: Any) -> Any:
        """Call `flash_attn_varlen_func`.

        Args:
            arguments: its own.
        """

    def read_tables(
        self,
        layer: Any,  # noqa: ARG002
        query: Tensor,
        kv_cache: Tensor,
        output: Tensor,
        plan: ReadPlan,
        tables: Tensor,
    ) -> None:
        k, v = flash_pages(kv_cache)
        window = self.policy.window
        self.kernel(
            q=query,
            k=k,
            v=v,
            out=output,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=1,
            seqused_k=plan.lengths,
            max_seqlen_k=plan.longest,
            softmax_scale=self.scale,
            causal=True,
            # Both ends count from the query and are read as well.
            window_size=[-1, -1] if window is None else [window - 1, 0],
            block_table=tables,
            softcap=self.logits_soft_cap,
            fa_version=self.flash_version,
            num_splits=self.flash_splits,
        )


def flash_pages(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as the kernel takes them, (blocks, tokens, heads, D) each.

    Args:
        kv_cache: (blocks, heads, tokens, 2 D), the key of a token before its value.
    """
    D = kv_cache.shape[-1] // 2
    k, v = kv_cache.transpose(1, 2).chunk(2, dim=-1)
    if kv_cache.shape[1] > 1:
        return k, v
    # Hopper's copies want strides of whole 16 bytes even where there is one of a kind.
    strides = (k.stride(0), k.stride(1), D, 1)
    return k.as_strided(k.shape, strides), v.as_strided(v.shape, strides)

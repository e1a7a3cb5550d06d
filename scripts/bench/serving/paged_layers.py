"""A sparse layer over FlashAttention's paged kernel, outside an engine.

The kernel is that of `vllm.vllm_flash_attn`, of which nothing else of vLLM is needed. Where none
is, a stand-in of the tests computes the same in plain torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lil.serving.blocks import BlockPolicy, FlashLayer, RopeTable, StepReads
from lil.serving.blocks.flash import flash_pages

PACKAGE = "vllm.vllm_flash_attn"
#: Of the kernel, and the major number of the GPUs that it is built for.
VERSION, CAPABILITY = 3, 9
STAND_INS = Path(__file__).resolve().parents[3] / "tests" / "lil" / "serving"

Kernel = Callable[..., Any]


class MissingError(RuntimeError):
    """What the real kernel runs on is not here."""


def kernel_of(stand_in: bool) -> Kernel:
    """`flash_attn_varlen_func`, or what stands in for it.

    Raises:
        MissingError: no device, no package, or a device of another kind.
    """
    found: Kernel
    if stand_in:
        if str(STAND_INS) not in sys.path:
            sys.path.append(str(STAND_INS))
        found = importlib.import_module("paged_flash").flash_attn_varlen_func
        return found
    if not torch.cuda.is_available():
        raise MissingError("no CUDA device")
    try:
        package = importlib.import_module(PACKAGE)
        found = package.flash_attn_varlen_func
    except (ImportError, AttributeError, OSError) as error:
        inside = sys.modules.get(f"{PACKAGE}.flash_attn_interface")
        reason = getattr(inside, "FA3_UNAVAILABLE_REASON", None)
        raise MissingError(f"no package {PACKAGE} that works: {error}; {reason}") from error
    if not getattr(package, "FA3_AVAILABLE", False):
        raise MissingError(f"{PACKAGE} is without version {VERSION} of the kernel")
    major, minor = torch.cuda.get_device_capability()
    if major != CAPABILITY:
        told = f"this device has {major}.{minor}"
        raise MissingError(f"version {VERSION} of the kernel needs capability {CAPABILITY}; {told}")
    return found


def place(stand_in: bool) -> dict[str, str | None]:
    """On what something was computed.

    Args:
        stand_in: whether the kernel was none.
    """
    kernel = "stand-in" if stand_in else f"FlashAttention {VERSION}"
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "kernel": kernel,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        **{name: _version(name) for name in ("vllm", "triton")},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Heads:
    """KV heads, query heads of each, and numbers of a head."""

    Hkv: int
    G: int
    D: int

    @property
    def scale(self) -> float:
        """Of products of queries and keys."""
        return float(self.D**-0.5)


@dataclass
class Metadata(StepReads):
    """What an engine tells its own attention of a step: the tokens that are read in full.

    Attributes:
        num_actual_tokens: of the step.
        query_start_loc, seq_lens: of the rows read in full, (R + 1,) and (R,).
        max_query_len, max_seq_len: the largest of both.
        block_table: of the same rows, (R, blocks).
        slot_mapping: where keys of all tokens are stored.
    """

    num_actual_tokens: int = 0
    query_start_loc: Any = None
    seq_lens: Any = None
    max_query_len: int = 0
    max_seq_len: int = 0
    block_table: Any = None
    slot_mapping: Any = None


class Paged(FlashLayer):
    """The form for GPUs with nothing around it.

    Attributes:
        call: the kernel.
        told: what it was told for decode queries, kept where this is a list.
    """

    call: Kernel
    told: list[dict[str, Any]] | None

    def kernel(self, **arguments: Any) -> Any:
        if self.told is not None:
            self.told.append(arguments)
        return self.call(**arguments)

    def read_in_full(
        self,
        layer: Any,  # noqa: ARG002
        query: Tensor,
        key: Tensor,  # noqa: ARG002
        value: Tensor,  # noqa: ARG002
        kv_cache: Tensor,
        meta: Any,
        output: Tensor,
        *scales: Tensor | None,  # noqa: ARG002
    ) -> None:
        k, v = flash_pages(kv_cache)
        some = slice(meta.num_actual_tokens)
        self.call(
            q=query[some],
            k=k,
            v=v,
            out=output[some],
            cu_seqlens_q=meta.query_start_loc,
            max_seqlen_q=meta.max_query_len,
            seqused_k=meta.seq_lens,
            max_seqlen_k=meta.max_seq_len,
            softmax_scale=self.scale,
            causal=True,
            window_size=[-1, -1],
            block_table=meta.block_table,
            softcap=self.logits_soft_cap,
            fa_version=self.flash_version,
            num_splits=self.flash_splits,
        )


def layer_of(
    kernel: Kernel, policy: BlockPolicy, heads: Heads, rope: RopeTable, told: bool = False
) -> Paged:
    """A layer of such heads.

    Args:
        kernel: of `kernel_of`.
        policy: what its decode queries read.
        heads: of the layer.
        rope: turns keys.
        told: whether it keeps what the kernel was told.
    """
    refused = dict.fromkeys(("alibi_slopes", "sinks", "kv_sharing_target_layer_name"))
    impl = SimpleNamespace(
        **refused,
        num_kv_heads=heads.Hkv,
        num_queries_per_kv=heads.G,
        head_size=heads.D,
        scale=heads.scale,
        flash_version=VERSION,
        flash_splits=0,
        logits_soft_cap=0.0,
        call=kernel,
        told=[] if told else None,
    )
    return Paged.of(impl, policy, rope)


def compared_by(layer: Paged) -> str | None:
    """What compares blocks in a layer; None where it remembers nothing of them."""
    if layer.summaries is None:
        return None
    return "triton" if layer.summaries.fused else "torch"


def angles_of(positions: int, D: int, device: torch.device | str) -> Tensor:
    """Angles by which pairs are turned at each position, (positions, D / 2), in float64."""
    rates = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64, device=device) / D)
    return torch.arange(positions, dtype=torch.float64, device=device)[:, None] * rates


def rope_of(angles: Tensor) -> RopeTable:
    """The engine's table of such angles."""
    return RopeTable(torch.cat((angles.cos(), angles.sin()), dim=-1).float(), halves=True)

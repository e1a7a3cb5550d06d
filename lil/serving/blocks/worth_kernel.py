"""The Triton kernel that compares blocks where they lie; importing this imports triton."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Numbers that a program looks at at once.
TILE = 4096


def compared(vectors: Tensor, data: Tensor, blocks: Tensor) -> Tensor:
    """The largest product of each block with a query's vectors, (N, sets, P); blocks are read once.

    `data` has a row of sets x size numbers for each block.
    """
    assert data.is_contiguous()
    assert blocks.dtype == torch.int64
    N, sets, M, size = vectors.shape
    P = blocks.shape[1]
    worth = vectors.new_empty(N, sets, P)
    width, rows = rows_of(size)
    each = triton.cdiv(P, rows)
    # Kernels start on the current device, which need not be the one tensors are on.
    on_device = torch.cuda.device(data.device) if data.is_cuda else nullcontext()
    with on_device:
        if worth.numel():
            compared_blocks[N * each, sets](
                vectors.contiguous(), data, blocks.contiguous(), worth, data.stride(0), sets, P,
                each, M=M, SIZE=size, WIDTH=width, ROWS=rows,
            )  # fmt: skip
    return worth


def rows_of(size: int) -> tuple[int, int]:
    """Numbers of a block, a power of two, and blocks that a program looks at at once."""
    width = triton.next_power_of_2(size)
    return width, max(1, TILE // width)


@triton.jit(do_not_specialize=["P", "each"], do_not_specialize_on_alignment=["blocks", "worth"])
def compared_blocks(
    vectors,  # (N, sets, M, SIZE)
    data,  # (blocks, stride)
    blocks,  # (N, P) int64
    worth,  # (N, sets, P)
    stride,
    sets,
    P,
    each,  # programs of a query
    M: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Some blocks of one set of one query."""
    own, n = tl.program_id(1), (tl.program_id(0) // each).to(tl.int64)
    column = tl.program_id(0) % each * ROWS + tl.arange(0, ROWS)
    there = column < P
    block = tl.load(blocks + n * P + column, mask=there, other=0)
    i = tl.arange(0, WIDTH)
    inside = i < SIZE
    at = block[:, None] * stride + own * SIZE + i[None, :]
    known = tl.load(data + at, mask=there[:, None] & inside[None, :], other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    for m in range(M):
        vector = tl.load(vectors + ((n * sets + own) * M + m) * SIZE + i, mask=inside, other=0.0)
        product = tl.sum(known * vector[None, :], 1)
        best = tl.maximum(best, product, propagate_nan=tl.PropagateNan.ALL)
    tl.store(worth + (n * sets + own) * P + column, best, mask=there)

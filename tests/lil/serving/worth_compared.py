"""The Triton kernel that compares blocks beside float64: on a GPU, or where Triton interprets.

    python tests/lil/serving/worth_compared.py --device cuda

Prints the largest difference and how many numbers were compared.
"""

from __future__ import annotations

import argparse
import itertools

import torch

from lil.serving.blocks.worth_kernel import compared

#: Queries, sets of a query, vectors of a set, their size, blocks of a query; none at all of some.
SHAPES = (
    *itertools.product((1, 3), (1, 2), (1, 4), (16, 24, 256), (1, 9, 70)),
    *((2, 1, 1, 1030, 5), (1, 1, 1, 1024, 33), (2, 3, 1, 4500, 2), (2, 2, 1, 16, 0)),
)


def at_first(sets: int, like: torch.Tensor) -> torch.Tensor:
    """The first of the sets, (1, sets, 1)."""
    return (torch.arange(sets, device=like.device) == 0)[None, :, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.manual_seed(5)
    largest, count = 0.0, 0
    for N, sets, M, size, P in SHAPES:
        data = torch.randn(40, sets, size, device=device)
        # Tables need not lie in one piece, nor vectors.
        blocks = torch.randint(40, (P, N), device=device).T
        vectors = torch.randn(sets, N, M, size, device=device).transpose(0, 1)
        found = compared(vectors, data, blocks)
        assert found.shape == (N, sets, P)
        exact = torch.einsum("nsmi,npsi->nsmp", vectors.double(), data[blocks].double()).amax(2)
        if P:
            largest = max(largest, float(((found - exact).abs() / size**0.5).max()))
        count += found.numel()
        # What is no number shows where it is, as in torch.
        if P:
            data[blocks[0, 0], 0, 0] = float("nan")
            found = compared(vectors, data, blocks)
            assert torch.equal(
                found.isnan(), (blocks == blocks[0, 0])[:, None] & at_first(sets, found)
            )
    print(largest, count)


if __name__ == "__main__":
    main()

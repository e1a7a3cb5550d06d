"""The Triton kernel that compares blocks beside float64, in a Python whose Triton interprets.

Prints the largest difference and how many numbers were compared.
"""

from __future__ import annotations

import itertools

import torch

from lil.serving.blocks.worth_kernel import compared

#: Queries, sets of a query, vectors of a set, their size, blocks of a query; none at all of some.
SHAPES = (
    *itertools.product((1, 3), (1, 2), (1, 4), (16, 24, 256), (1, 9, 70)),
    *((2, 1, 1, 1030, 5), (1, 1, 1, 1024, 33), (2, 3, 1, 4500, 2), (2, 2, 1, 16, 0)),
)


def main() -> None:
    torch.manual_seed(5)
    largest, count = 0.0, 0
    for N, sets, M, size, P in SHAPES:
        data = torch.randn(40, sets, size)
        # Tables need not lie in one piece, nor vectors.
        blocks = torch.randint(40, (P, N)).T
        vectors = torch.randn(sets, N, M, size).transpose(0, 1)
        found = compared(vectors, data, blocks)
        assert found.shape == (N, sets, P)
        exact = torch.einsum("nsmi,npsi->nsmp", vectors.double(), data[blocks].double()).amax(2)
        if P:
            largest = max(largest, float(((found - exact).abs() / size**0.5).max()))
        count += found.numel()
    print(largest, count)


if __name__ == "__main__":
    main()

"""Kernels compiled for GPUs that need not be here: what the interpreter does not notice."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_FLOATS = ("out", "sums", "parts", "part_sums", "probs", "vectors", "data", "worth")
_FLOATS += ("part", "logits", "memory", "cos", "sin", "lse")
_INTEGERS = ("seen", "live", "lengths", "at", "position", "table", "read", "reads")
_INTEGERS += ("spared", "recent")
#: NVIDIA's A100 and H100.
CAPABILITIES = (80, 90)
#: Bytes of shared memory that the smallest of the GPUs that are supported has for a program.
SHARED = 99 << 10


def compiled() -> int:
    """Compile every kernel to machine code and print what it takes; 1 if one takes too much."""
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        print("unset TRITON_INTERPRET: the interpreter compiles nothing")
        return 1
    import torch
    import triton

    from attention.engines import triton_kernels as kernels
    from attention.engines.gpu import tiles
    from lil.serving.blocks.worth_kernel import compared_blocks, rows_of

    print(f"triton {triton.__version__}; shared memory in bytes")
    wrong = 0
    for capability, (name, short), D in product(CAPABILITIES, _DTYPES.items(), (80, 128, 256)):
        tile = tiles(4, D, getattr(torch, name))
        common = {"H": 8, "SHARED": 1, "M": 4, "D": D, "WIDEN": False, **tile._asdict()}
        table, slots = (
            {**common, "PAGE": 16, "TABLE": t, "SINKS": not t, "ALONE": not t}
            for t in (True, False)
        )
        parts = {"M": 4, "D": D, "WIDTH": tile.WIDTH, "SPLITS": 64}
        for what, kernel, constants in (
            ("pages", kernels.attend_split, table),
            ("slots", kernels.attend_split, slots),
            ("combine", kernels.combine, parts),
            ("probabilities", kernels.probabilities, common),
        ):
            shared = _shared_memory(kernel, short, constants, capability)
            wrong += shared > SHARED
            print(f"sm_{capability} {name} D {D} {what}: {shared}", flush=True)
    for capability, size, M in product(CAPABILITIES, (48, 256, 1024), (1, 4)):
        width, rows = rows_of(size)
        constants = {"M": M, "SIZE": size, "WIDTH": width, "ROWS": rows}
        shared = _shared_memory(compared_blocks, "fp32", constants, capability)
        wrong += shared > SHARED
        print(f"sm_{capability} blocks of {size} numbers, {M} vectors: {shared}", flush=True)
    print(f"{wrong} beyond {SHARED}")
    return 1 if wrong else 0


def _shared_memory(
    kernel: Any, dtype: str, constants: dict[str, Any], capability: int, warps: int = 4
) -> int:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.arg_names)
    given = {name: _type(name, dtype) for name in names}
    if "part" in names:  # `parts` counts them
        given["parts"] = "i32"
    signature = {name: "constexpr" if name in constants else given[name] for name in names}
    aligned = [
        i
        for i, name in enumerate(names)
        if signature[name].startswith("*")
        or name in ("k_b", "k_h", "k_s", "v_b", "v_h", "v_s")
        or name in ("q_r", "q_h", "k_r", "v_r", "capacity")
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": warps}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert made.asm["cubin"], "machine code"
    return int(made.metadata.shared)


def _type(name: str, dtype: str) -> str:
    if name in ("q", "k", "v", "sinks", "keys", "values", "queries"):
        return f"*{dtype}"
    if name in ("pages", "counts", "blocks", "following", "numbers"):
        return "*i64"
    if name in _INTEGERS:
        return "*i32"
    if name == "scaling":
        return "fp32"
    return "*fp32" if name in _FLOATS else "i32"

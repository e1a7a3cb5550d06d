"""Compares engines with a naive oracle in float64 and prints the largest differences.

    python scripts/checks/check_triton.py                # the engine triton, in its interpreter
    python scripts/checks/check_triton.py --device cuda  # every engine that can work there
    python scripts/checks/check_triton.py --compile      # kernels to machine code, no GPU

The oracle lives with the tests (tests/attention/oracles/decode_query.py) and shares no code with
the package. Differences are those from the oracle of the same rounded numbers, divided by the
largest value of what is compared where that is above 1. Exit code 1 if one is beyond what is
allowed, or if a kernel does not compile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Largest difference of engines to a naive oracle.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--engine", action="append", help="only this one, may be repeated; triton on the cpu"
    )
    parser.add_argument("--quick", action="store_true", help="about one case in six")
    parser.add_argument(
        "--compile", action="store_true", help="only compile the kernels, for GPUs not here"
    )
    args = parser.parse_args(arguments)
    if args.device == "cpu" and not args.compile:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    # What imports torch comes after the flags, so that help and mistakes are quick.
    if args.compile:
        from checking_engines.compiling import compiled

        return compiled()

    import torch
    from checking_engines.cases import DTYPES, cases
    from checking_engines.comparing import Result, table, worst

    from attention.engines import ENGINES

    started = time.perf_counter()
    names = args.engine or (["triton"] if args.device == "cpu" else list(ENGINES))
    if unknown := set(names) - set(ENGINES):
        parser.error(f"--engine {unknown.pop()!r}: expected one of {', '.join(ENGINES)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device")
    torch.set_num_threads(1)
    device = torch.device(args.device)
    results: list[Result] = []
    for name in names:
        for dtype in DTYPES:
            reason = ENGINES[name].refusal(device, dtype)
            if reason is not None:
                print(f"not run: {name} in {str(dtype)[6:]}: expected {reason}", flush=True)
                continue
            results += worst(ENGINES[name], device, dtype, cases(args.quick, args.device))
    print(table(results))
    wrong = [r for r in results if not r.fits]
    for r in wrong:
        print(f"WRONG: {r.engine} {r.what} {r.dtype}: {r.difference:.2e}, case {r.case}")
    number = sum(r.cases for r in results if r.what == "out")
    seconds = time.perf_counter() - started
    print(f"{number} cases, {len(wrong)} of {len(results)} lines wrong, {seconds:.0f} s")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())

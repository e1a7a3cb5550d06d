"""Decode the shipped reasoner on a GPU as it is and with captured steps, and on the CPU; compare.

    python scripts/checks/check_devices.py           # 32 problems, every method
    python scripts/checks/check_devices.py --quick   # 8 problems

Float32, greedy, budget 64, with Guardian and the LZ penalty in a case of their own. Two devices add
numbers in another order, so that a text may differ where two tokens have nearly the same score.
The exit code is 1 if fewer than 95% of a case's texts are equal, or if a case fails.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import Any

LEAST_EQUAL = 0.95


def cases() -> dict[str, dict[str, Any]]:
    """Every method with a budget, and H2O with what acts on a row."""
    import attention
    import lil
    from attention.methods import names
    from experiments import bench

    each = {name: {"backend": bench.sparse(name, 64)} for name in names()}
    h2o = attention.H2O(budget=64, keep_prompt=False)
    return {
        **each,
        "h2o, lz": {"backend": h2o, "penalties": [lil.LZPenalty()]},
        "h2o, guardian": {"backend": h2o, "detectors": [lil.Guardian(f=50)]},
        "quest, drafts": {"backend": bench.sparse("quest", 64), "speculate": 4},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--device", default="cuda", help="compared with the CPU (cuda)")
    flags.add_argument("--quick", action="store_true", help="8 problems instead of 32")
    args = flags.parse_args(argv)
    import torch  # behind the flags, so that help and mistakes are quick

    import lil
    from experiments.grid.models import REASONER, find, load
    from experiments.reasoner import problem

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        flags.error(f"--device {args.device}: torch finds no CUDA device")
    prompts = [problem("easy", "study", i).prompt for i in range(8 if args.quick else 32)]
    here, there = (load(find(REASONER), "float32", device) for device in ("cpu", args.device))
    wrong = 0
    for name, options in cases().items():
        drafts = "speculate" in options
        ways = {"cpu": (here, "off"), "eager": (there, "off"), "captured": (there, "on")}
        if drafts:  # drafts are decoded eagerly
            del ways["captured"]
        texts: dict[str, list[tuple[Any, ...]]] = {}
        try:
            for way, (loaded, compile_) in ways.items():
                with warnings.catch_warnings(record=True) as warned:
                    traces = lil.decode(
                        loaded.model,
                        loaded.tokenizer,
                        prompts,
                        max_new_tokens=300,
                        batch_size=8,
                        compile=compile_,
                        **options,
                    )
                for warning in warned:  # a step that is not captured, with the reason
                    print(f"{name}, {way}: {warning.message}", flush=True)
                texts[way] = [(*trace.new_ids, trace.finish) for trace in traces]
        except Exception as error:  # the other cases still run
            wrong += 1
            print(f"WRONG: {name}: {type(error).__name__}: {error}", flush=True)
            continue
        for way in list(ways)[1:]:
            equal = sum(a == b for a, b in zip(texts[way], texts["cpu"], strict=True))
            enough = equal >= LEAST_EQUAL * len(prompts)
            wrong += not enough
            mark = "" if enough else "WRONG: "
            print(f"{mark}{name}, {way}: {equal} of {len(prompts)} texts equal", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

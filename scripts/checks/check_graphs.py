"""Compares decodes whose steps are captured as CUDA graphs with those of the model as it is.

    python scripts/checks/check_graphs.py           # on a GPU, in float32 and bfloat16
    python scripts/checks/check_graphs.py --quick   # one variant of each method, few detectors

A tiny random model decodes ragged prompts, of which rows end and are replaced, under every method,
and every penalty and detector under one of them. In float32 tokens and verdicts have to be the
same; in bfloat16, where sums of another number of rows may be rounded otherwise, the share of equal
tokens is printed. Every case that differs or fails is named, and the others are run all the same;
exit code 1 if there is one. Models, penalties and detectors are those of the tests.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lil")]


class Case(NamedTuple):
    """What is decoded.

    Attributes:
        name: of the case.
        options: of `lil.decode`.
    """

    name: str
    options: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Decodes of CUDA graphs beside those without.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="about one case in three")
    args = parser.parse_args(arguments)
    # What imports torch comes after the flags, so that help and mistakes are quick.
    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: torch finds no CUDA device")
    from tiny_models import build_model, build_tokenizer

    tokenizer, wrong = build_tokenizer(), 0
    every = list(cases())[:: 3 if args.quick else 1]
    for dtype in (torch.float32, torch.bfloat16):
        model = build_model("qwen3", dtype).to(args.device)
        equal = total = 0
        for case in every:
            reason, same, tokens = compared(model, tokenizer, case)
            equal, total = equal + same, total + tokens
            if reason is None and dtype == torch.float32 and same < tokens:
                reason = f"{tokens - same} of {tokens} tokens or verdicts differ"
            if reason is not None:
                wrong += 1
                print(f"WRONG: {dtype}, {case.name}: {reason}", flush=True)
        print(f"{dtype}: {len(every)} cases, {equal} of {total} tokens the same", flush=True)
    return bool(wrong)


def cases() -> Iterator[Case]:
    """Every method; every penalty and detector under H2O; and sampling."""
    from penalty_cases import CASES
    from penalty_cases import build as penalty
    from test_waits import DETECTORS
    from tiny_models import Endings

    import attention
    from tests.attention.examples import BACKENDS

    for i, backend in enumerate(BACKENDS):
        yield Case(f"{backend.name} {i}", {"backend": backend})
    one: dict[str, Any] = {"backend": attention.H2O(budget=16)}
    for name in CASES:
        yield Case(f"penalty {name}", one | {"penalties": [penalty(name)]})
    for name, detector in DETECTORS.items():
        watched = {"penalties": [Endings()], "detectors": [detector]}
        yield Case(f"detector {name}", one | watched)
    yield Case("sampled", one | {"temperature": 0.8, "top_p": 0.9, "seed": 3})


def compared(model: Any, tokenizer: Any, case: Case) -> tuple[str | None, int, int]:
    """Why a case failed, or None; how many tokens and endings are the same, and of how many."""
    from test_waits import CAPS, PROMPTS
    from tiny_models import asked

    import lil
    from lil.decoding.compiling import CompileWarning

    rows = asked(PROMPTS, max_new_tokens=CAPS)
    try:
        plain = lil.decode(model, tokenizer, rows, batch_size=3, **case.options)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            graphs = lil.decode(model, tokenizer, rows, batch_size=3, compile="on", **case.options)
    except Exception as error:  # the other cases are run
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:300]}", 0, 0
    same = total = 0
    for one, other in zip(plain, graphs, strict=True):
        pairs = zip([*one.new_ids, one.finish], [*other.new_ids, other.finish], strict=False)
        same += sum(x == y for x, y in pairs)
        total += 1 + max(len(one.new_ids), len(other.new_ids))
    return None, same, total


if __name__ == "__main__":
    sys.exit(main())

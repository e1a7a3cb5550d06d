"""What is checked and measured, in order."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_checking import probes

ROOT = Path(__file__).resolve().parents[3]
ENGINES = ("torch", "triton", "flash")
NO_GPU = "no CUDA device"
PAGED_KERNEL = "vllm.vllm_flash_attn"


def is_here(package: str) -> bool:
    """Whether a package can be imported, or one inside another."""
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # what it lies in is not here, or fails
        return False


@dataclass(frozen=True)
class Stage:
    """One subprocess.

    Attributes:
        name: of the stage.
        arguments: what Python is called with.
        seconds: it is stopped after.
        needs: packages without which it is not run.
        gpu: whether it needs a CUDA device.
        engine: the engine it asks for in bfloat16, which may refuse.
        environment: variables beside those that are set.
        json: whether its output is a JSON document.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ("torch", "numpy", "lazy_loader")
    gpu: bool = True
    engine: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    json: bool = False

    def obstacle(self, found: Mapping[str, Any]) -> str | None:
        """Why it cannot be run, from what earlier stages found; None if it can."""
        if self.gpu and not (found.get("environment") or {}).get("gpus"):
            return NO_GPU
        lacking = [name for name in self.needs if not is_here(name)]
        if lacking:
            return f"no package {', '.join(lacking)}"
        if self.engine is not None:
            known = (found.get("engines") or {}).get("cuda", {}).get("bfloat16", {})
            if self.engine not in known:
                return "the stage `engines` did not say whether it can work"
            reason = known[self.engine]
            return None if reason is None else f"expected {reason}"
        return None


_MODELS = ("torch", "numpy", "lazy_loader", "transformers")
_TESTS = (*_MODELS, "pytest", "hypothesis")
_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--tb=short")
_BENCH = (
    *("scripts/bench/attention_speed.py", "--device", "cuda", "--dtype", "bfloat16"),
    *("--contexts", "4096,32768", "--batches", "1,16", "--budget", "1024", "--steps", "32"),
)


def stages(quick: bool = False) -> list[Stage]:
    """All, in order; `quick` looks at fewer oracle cases."""
    fewer = ("--quick",) if quick else ()
    oracle = [
        Stage(
            f"oracle {name}",
            ("scripts/checks/check_triton.py", "--device", "cuda", "--engine", name, *fewer),
            600,
            engine=name,
        )
        for name in ENGINES
    ]
    bench = [
        Stage(
            f"bench {name}",
            (*_BENCH, "--engine", name, "--json"),
            300,
            (*_MODELS, "msgspec", "rich"),
            engine=name,
            json=True,
        )
        for name in ENGINES
    ]
    on_gpu = {"LIL_TEST_DEVICE": "cuda"}
    workers = ("-n", "auto") if importlib.util.find_spec("xdist") else ()
    return [
        Stage("environment", ("-c", probes.ENVIRONMENT), 120, (), gpu=False, json=True),
        Stage("engines", ("-c", probes.ENGINES), 120, gpu=False, json=True),
        *oracle,
        Stage(
            "engine tests",
            (*_PYTEST, "-m", "slow or not slow", "tests/attention/test_engines.py"),
            600,
            _TESTS,
            environment=on_gpu,
        ),
        Stage(
            "penalty bits",
            ("tests/lil/lz_engines.py", "triton", "20000", "--rows", "40", "--device", "cuda"),
            300,
            environment={"PYTHONPATH": str(ROOT)},
        ),
        Stage(
            "whole runs", ("scripts/checks/check_devices.py", *fewer), 400, (*_MODELS, "msgspec")
        ),
        Stage("graph tokens", ("scripts/checks/check_graphs.py", *fewer), 400, _TESTS),
        *bench,
        Stage(
            "graph bench",
            ("scripts/bench/graphed_step.py", "--batches", "1,8,32", "--context", "1024", "--json"),
            600,
            (*_MODELS, "msgspec", "rich"),
            json=True,
        ),
        Stage(
            "blocks' worth",
            ("tests/lil/serving/worth_compared.py", "--device", "cuda"),
            120,
            _MODELS,
        ),
        Stage(
            "paged kernel",
            ("scripts/checks/check_paged_flash.py", *fewer),
            400,
            (*_MODELS, PAGED_KERNEL),
        ),
        Stage(
            "paged bench",
            ("scripts/bench/serving/sparse_flash.py",),
            400,
            (*_MODELS, PAGED_KERNEL),
            json=True,
        ),
        Stage(
            "quick tests",
            (*_PYTEST, *workers, "tests/attention"),
            600,
            _TESTS,
            gpu=False,
            environment={"OMP_NUM_THREADS": "1"},
        ),
    ]

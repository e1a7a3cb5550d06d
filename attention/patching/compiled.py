"""A decode step compiled ahead, kept in a folder of the user's and bound to a model's weights."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import safetensors.torch
import torch
import transformers
from filelock import FileLock, Timeout
from torch import Tensor
from transformers import PreTrainedModel

from attention.patching import decode_step
from attention.patching.cache import AttentionCache
from attention.patching.captured import GRAPHS, captured
from attention.patching.decode_step import DecodeStep, Names, NotCompiled, Then
from attention.patching.lengths import following
from attention.patching.program import OPTIONS
from attention.user_cache import UnusableFolder, user_cache


@dataclass(frozen=True)
class CompiledStep(DecodeStep):
    """A step that torch's compiler wrote as one library for this processor."""

    how: ClassVar[str] = "compiled"
    step: Callable[[Tensor, Tensor], Sequence[Tensor]]
    states: Names
    weights: Mapping[str, Tensor] = field(repr=False)
    seconds: float = 0.0

    def run(self, ids: Tensor, positions: Tensor, _then: Then | None) -> Sequence[Tensor]:
        return self.step(ids, positions)


def compiled(
    model: PreTrainedModel,
    cache: AttentionCache,
    *,
    states: Sequence[str] = (),
    wait: bool = True,
    make: bool = True,
    fuse: bool = True,
) -> DecodeStep | None:
    """The compiled decode step of a model in evaluation mode; made where none is kept.

    Steps for CPUs are kept in the user's cache folder, without weights; those for CUDA devices are
    graphs, kept while the model lives. A new step is compared with the model before it is kept.

    Args:
        cache: of an open block on the model; it stays as it is.
        states: names of modules whose outputs the step returns after scores, in forward order.
        wait: for another process that is compiling the same step.
        make: compile where none is kept; else None is returned.
        fuse: on CUDA devices, compile what lies between attentions too, from the next capture on.

    Raises:
        NotCompiled: with the reason; nothing is left behind.
    """
    graphs, wanted = model.device.type in GRAPHS, tuple(states)
    if not graphs and model.device.type != "cpu":
        raise NotCompiled(f"steps are compiled for CPUs and CUDA devices, not for {model.device}")
    anatomy = cache.session.anatomy
    if anatomy.softmax != tuple(range(anatomy.layers)) or anatomy.states:
        raise NotCompiled("some of its layers hold no keys, or states of their own")
    if following(model):
        raise NotCompiled("its rotary embedding follows the length of each row")
    if (reason := decode_step.refusal(model)) is not None:
        raise NotCompiled(reason)
    name = key(model, wanted)
    if graphs:
        return captured(model, cache, name, wanted, make, fuse)
    decode_step.operator()
    try:
        path = user_cache("steps") / f"{name}.pt2"
        if (step := _kept(path, model, wanted)) is not None or not make:
            return step
        with FileLock(f"{path}.lock", timeout=-1 if wait else 0):
            if (step := _kept(path, model, wanted)) is not None:  # of another process, meanwhile
                return step
            started, making = time.perf_counter(), path.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)  # of a process that was killed
            making.mkdir(mode=0o700)
            try:
                new = making / path.name
                _make(new, model, wanted)
                decode_step.probe(_loaded(new, model, wanted), model, cache)
                for file in (_constants_file(new), new):
                    if file.exists():
                        file.replace(path.parent / file.name)
            finally:
                shutil.rmtree(making, ignore_errors=True)
            return replace(_loaded(path, model, wanted), seconds=time.perf_counter() - started)
    except Timeout:
        return None
    except UnusableFolder as error:
        raise NotCompiled(str(error)) from error
    except NotCompiled:
        raise
    except Exception as error:  # whatever exporter, code generator or C++ compiler raise
        raise NotCompiled.because(error) from error


def _kept(path: Path, model: PreTrainedModel, states: Names) -> CompiledStep | None:
    """The step in a file; None where there is none, or none that can be loaded."""
    if not path.exists():
        return None
    try:
        return _loaded(path, model, states)
    except (OSError, RuntimeError, ValueError, KeyError):  # half a file, or names of other weights
        return None


def key(model: PreTrainedModel, states: Sequence[str] = ()) -> str:
    """A digest of all that a compiled step depends on, but for the values of weights."""
    config = model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):
        config.pop(name, None)
    names = {type(module).__module__ for module in model.modules()}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    sources = {n: sha256(Path(f).read_bytes()).hexdigest() if f else "" for n, f in files.items()}
    parts = {
        "version": decode_step.VERSION,
        "states": list(states),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": (platform.machine(), torch.backends.cpu.get_cpu_capability()),
        "threads": torch.get_num_threads(),
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "sources": sources,
        "config": config,
        "tensors": [
            (name, tuple(x.shape), x.stride(), str(x.dtype))
            for name, x in decode_step.constants(model).items()
        ],
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:32]


def _make(path: Path, model: PreTrainedModel, states: Sequence[str]) -> None:
    """Compile a step to `path`, and its further constants to `_constants_file`."""
    from torch._inductor import aoti_compile_and_package

    options = OPTIONS | {"aot_inductor.package_constants_in_so": False}
    with decode_step.quiet():
        program = decode_step.exported(model, states)
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    own = decode_step.constants(model)
    more = {name: x.contiguous() for name, x in program.constants.items() if name not in own}
    if more:
        safetensors.torch.save_file(more, _constants_file(path))


def _constants_file(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def _loaded(path: Path, model: PreTrainedModel, states: Names) -> CompiledStep:
    """The step in a file, with the model's own tensors for weights."""
    from torch._inductor import aoti_load_package

    step = aoti_load_package(str(path))
    own = decode_step.constants(model)
    if _constants_file(path).exists():
        own |= safetensors.torch.load_file(_constants_file(path))
    weights = {name: own[name].detach() for name in step.get_constant_fqns()}
    step.load_constants(weights, check_full_update=True, user_managed=True)
    return CompiledStep(step, states, weights)

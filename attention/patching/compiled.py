"""A decode step compiled ahead, kept in a folder of the user's and bound to a model's weights."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
import transformers
from filelock import FileLock, Timeout
from torch import Tensor
from transformers import PreTrainedModel

from attention.errors import InvalidValue
from attention.patching.cache import AttentionCache
from attention.patching.operator import CALL, VERSION, Call, constants, exported, operator, refusal
from attention.user_cache import UnusableFolder, user_cache

#: What a compiled step may differ by from an eager one, of the largest score: roundings of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}


class NotCompiled(Exception):  # noqa: N818 - it names a state that callers go on from, not a fault
    """A step that could not be compiled, with the reason; the model runs as it is."""


@dataclass(frozen=True)
class CompiledStep:
    """A model's decode step, attention being one operator in it: the same for every method.

    Rows attend through the cache that a call is given, so one step serves all caches of all blocks
    on its model. It sees changes of weights in place; hooks that are added later it does not call.

    Args:
        step: ids and positions, (B, 1) each, to scores (B, V).
        seconds: what compiling took; 0 where the step was kept from earlier.
        weights: the model's tensors that the step reads.
    """

    step: Callable[[Tensor, Tensor], Tensor]
    seconds: float
    weights: Mapping[str, Tensor] = field(repr=False)

    def __call__(self, cache: AttentionCache, ids: Tensor, positions: Tensor) -> Tensor:
        """Scores (B, V) of the tokens behind `ids`, as a forward of the model gives them.

        Args:
            cache: of an open block on the model, its prompts read.
            ids: each row's newest token, (B, 1).
            positions: theirs, (B, 1).

        Raises:
            InvalidValue: a cache of a closed block, or what `AttentionCache.attend` refuses.
        """
        if not cache.session.open:
            closed = f"a cache of a closed {cache.backend.name} block"
            raise InvalidValue("cache", closed, "one of an open block")
        cache.expect(1)
        call = Call(cache, positions)
        before = CALL.set(call)
        try:
            scores = self.step(ids.contiguous(), positions.contiguous())
        finally:
            CALL.reset(before)
        if call.error is not None:
            raise call.error
        return scores


def compiled(
    model: PreTrainedModel, cache: AttentionCache, *, wait: bool = True, make: bool = True
) -> CompiledStep | None:
    """The compiled decode step of a model; made where none is kept.

    Steps are kept by everything that they depend on, in `folder()`: no weights, which are bound
    when one is loaded. One that was just made is compared with the model before it is kept.

    Args:
        model: on a CPU, in evaluation mode.
        cache: of an open block on it; it stays as it is.
        wait: for another process that is compiling the same step.
        make: compile where none is kept.

    Returns:
        None where none is kept and none is made, now or at all.

    Raises:
        NotCompiled: with the reason; nothing is left behind.
    """
    if model.device.type != "cpu":
        raise NotCompiled(f"steps are compiled for CPUs, not for {model.device}")
    reason = refusal(model)
    if reason is not None:
        raise NotCompiled(reason)
    kept = folder()
    path = kept / f"{key(model)}.pt2"
    operator()
    try:
        step = _kept(path, model)
        if step is not None or not make:
            return step
        with FileLock(f"{path}.lock", timeout=-1 if wait else 0):
            step = _kept(path, model)
            if step is not None:  # of another process, meanwhile
                return step
            started = time.perf_counter()
            with _folder(path.with_suffix(".making")) as made:
                new = made / path.name
                _make(new, model)
                probe(_loaded(new, model, 0.0), model, cache)
                for file in (_beside(new), new):
                    if file.exists():
                        file.replace(kept / file.name)
            return _loaded(path, model, time.perf_counter() - started)
    except Timeout:
        return None
    except NotCompiled:
        raise
    except Exception as error:  # whatever exporter, code generator or C++ compiler raise
        lines = str(error).strip().splitlines() or [""]
        raise NotCompiled(f"{type(error).__name__}: {lines[0][:200]}") from error


def _kept(path: Path, model: PreTrainedModel) -> CompiledStep | None:
    """The step in a file; None where there is none, or none that can be loaded."""
    if not path.exists():
        return None
    try:
        return _loaded(path, model, 0.0)
    except (OSError, RuntimeError, ValueError, KeyError):  # half a file, or names of other weights
        return None


def folder() -> Path:
    """Where compiled steps are kept: in the user's cache folder, or under LIL_CACHE.

    Raises:
        NotCompiled: a folder in which somebody else can write, whose code would be run.
    """
    try:
        return user_cache("steps")
    except UnusableFolder as error:
        raise NotCompiled(str(error)) from error


def key(model: PreTrainedModel) -> str:
    """A digest of all that a compiled step depends on, but for the values of weights."""
    config = model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):
        config.pop(name, None)
    sources = {type(module).__module__ for module in model.modules()}
    parts = {
        "version": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": (platform.machine(), torch.backends.cpu.get_cpu_capability()),
        "threads": torch.get_num_threads(),
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "sources": {name: _digest_of(name) for name in sorted(sources)},
        "config": config,
        "tensors": [
            (name, tuple(x.shape), x.stride(), str(x.dtype)) for name, x in constants(model).items()
        ],
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest_of(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards; what a process left there that was killed goes first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _make(path: Path, model: PreTrainedModel) -> None:
    """Compile a step to `path`, and what it holds beside the model's tensors to `_beside(path)`."""
    from torch._inductor import aoti_compile_and_package

    options = {
        "aot_inductor.package_constants_in_so": False,
        "emulate_precision_casts": True,  # rounded to half precision where the model itself rounds
        "compile_threads": 1,  # others would be processes that outlive this one
    }
    with _quiet():
        program = exported(model)
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    own = constants(model)
    more = {name: x.contiguous() for name, x in program.constants.items() if name not in own}
    if more:
        safetensors.torch.save_file(more, _beside(path))


def _beside(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def _loaded(path: Path, model: PreTrainedModel, seconds: float) -> CompiledStep:
    """The step in a file, with the model's own tensors for weights."""
    from torch._inductor import aoti_load_package

    step = aoti_load_package(str(path))
    own = constants(model)
    if _beside(path).exists():
        own |= safetensors.torch.load_file(_beside(path))
    weights = {name: own[name].detach() for name in step.get_constant_fqns()}
    step.load_constants(weights, check_full_update=True, user_managed=True)
    return CompiledStep(step, seconds, weights)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what compilers print beside their errors, which are raised."""
    level = logging.getLogger("torch").level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)


def probe(step: CompiledStep, model: PreTrainedModel, cache: AttentionCache) -> None:
    """Compare a compiled step with the model itself on a few tokens.

    Args:
        step: of the model.
        cache: of an open block on it; it stays as it is.

    Raises:
        NotCompiled: scores differ by more than rounding.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(1, 9).view(2, 4) * 7) % vocabulary
    with torch.inference_mode():
        eager = AttentionCache(cache.session.full_session)
        model(input_ids=ids[:, :3], past_key_values=eager, use_cache=True, logits_to_keep=1)
        twin, newest, at = eager.clone(), ids[:, 3:], eager.seen[:, None]
        given = {"input_ids": newest, "position_ids": at, "past_key_values": eager}
        wanted = model(**given, use_cache=True, logits_to_keep=1).logits[:, -1].double()
        scores = step(twin, newest, at).double()
    apart = float((scores - wanted).abs().max() / wanted.abs().max())
    if not apart <= TOLERANCE[model.dtype]:
        raise NotCompiled(f"its scores differ from the model's by {apart:.2g} of the largest")

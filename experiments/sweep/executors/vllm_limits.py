"""What a sweep can have decoded by vLLM: everything else is refused by name, without the engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attention.contract import Full
from attention.errors import InvalidValue
from attention.methods import METHODS
from attention.spec import Spec
from experiments.grid.config import Config
from experiments.grid.detectors import build_detectors
from experiments.grid.gguf.cache import is_gguf
from experiments.grid.gguf.packaged import PACKAGED
from experiments.grid.plan import build_backends, build_penalties
from experiments.store.samples.replay import continues_after_verdict
from lil.serving.blocks import POLICIES, BlockPolicy
from lil.serving.keys import PENALTIES, penalty_keys
from lil.serving.values import penalty_of

if TYPE_CHECKING:
    from attention import Backend
    from lil import Detector
    from lil.penalties import Penalty

#: Tokens of a block are a multiple of it in the engine's kernel for CPUs.
BLOCK = 32


#: What a dry run cannot know of it.
MEMORY = (
    "memory is what lil.decode would take: under vllm every method holds blocks of all its tokens"
)
NOT_HERE = "vLLM is not installed here: the sweep needs it (docs/serving.md)"


def is_installed() -> bool:
    """Whether the engine, which is not imported, is here."""
    return importlib.util.find_spec("vllm") is not None


def require_installed() -> None:
    """Look for the engine.

    Raises:
        InvalidValue: it is not installed here.
    """
    if not is_installed():
        allowed = "transformers; vllm where vLLM 0.32 is installed (docs/serving.md)"
        raise InvalidValue("runtime", "vllm", allowed)


def require_able(config: Config) -> None:
    """Refuse what the engine cannot do, or what nobody has compared there.

    Raises:
        InvalidValue: the first of it.
    """
    _require_settings(config)
    for backend in build_backends(config):
        policy_of(backend)
    for penalties in build_penalties(config):
        request_values(penalties)
    _require_replayed(build_detectors(config))


def _require_settings(config: Config) -> None:
    cpu = "auto or cpu: a sweep decodes by vLLM's CPU build alone"
    one = "under vllm, which decodes in this process"
    refused: list[tuple[str, Any, bool, str]] = [
        ("dtype", config.dtype, config.dtype != "float32", "float32: no other was compared"),
        ("weights", config.weights, config.weights != "stored", "stored under vllm"),
        ("device", config.device, config.device not in ("auto", "cpu"), cpu),
        ("device_map", config.device_map, config.device_map is not None, "none under vllm"),
        ("engine", config.engine, config.engine != "auto", "auto: kernels are vLLM's own"),
        ("compile", config.compile, config.compile == "on", "off or auto: vLLM runs eagerly here"),
        ("workers", config.workers, config.workers != 1, f"1 {one}"),
        ("executor", config.executor, config.executor != "local", f"local {one}"),
        (
            "temperature",
            config.temperature,
            config.temperature != 0.0,
            "0: vLLM draws by random numbers of its own",
        ),
        (
            "beyond_positions",
            config.beyond_positions,
            config.beyond_positions,
            "false: vLLM ends a request where the model's positions do",
        ),
    ]
    for field, value, wrong, allowed in refused:
        if wrong:
            raise InvalidValue(field, value, allowed)
    for name in config.models:
        if name in PACKAGED or is_gguf(name):
            raise InvalidValue("model", name, "no GGUF file under vllm")


def _require_replayed(detectors: Iterable[Detector]) -> None:
    for detector in detectors:
        if detector.signals:
            allowed = "one that reads tokens alone: vLLM shows no hidden states"
            raise InvalidValue("detector", detector.name, allowed)
        if continues_after_verdict(detector):
            allowed = "stop, which is replayed: under vllm nothing is generated after a verdict"
            raise InvalidValue("action", detector.action.name, allowed)


def require_layers(model: str, layers: int, backends: Iterable[Backend]) -> None:
    """Refuse methods that leave no layer of a model sparse.

    Raises:
        InvalidValue: one of them.
    """
    for backend in backends:
        if backend.dense_layers >= layers:
            allowed = f"fewer than the {layers} layers of {model}"
            raise InvalidValue("dense_layers", backend.dense_layers, allowed)


def policy_of(backend: Backend) -> BlockPolicy | None:
    """What a backend is over the engine's blocks; None for full attention.

    Raises:
        InvalidValue: a method that an engine has no form of, or a parameter it cannot keep.
    """
    if type(backend) is Full:
        return None
    kind = POLICIES.get(backend.name)
    if kind is None or type(backend) is not kind.kind:
        known = ["full", *POLICIES]
        raise InvalidValue("backend", backend.name, f"{', '.join(known)} under vllm", known)
    made = kind(backend, _block(backend))
    spelled = METHODS.spec(attention_text(backend))
    if METHODS.get(spelled.name, **spelled.params).identity() != backend.identity():
        raise InvalidValue("backend", str(spelled), "a method that can be spelled for the engine")
    return made


def _block(backend: Any) -> int:
    """Tokens of the engine's block: what the method chooses by."""
    for field in ("page", "block"):
        size = getattr(backend.parts if field == "block" and hasattr(backend, "parts") else backend,
                       field, None)  # fmt: skip
        if size is None:
            continue
        if size % BLOCK:
            allowed = f"a multiple of {BLOCK} under vllm, for its kernel on CPUs"
            raise InvalidValue(field, size, allowed)
        return int(size)
    return BLOCK


def attention_text(backend: Backend) -> str:
    """A method as the engine is told of it."""
    return str(Spec(backend.name, backend.params()))


def request_values(penalties: Sequence[Penalty]) -> dict[str, Any]:
    """What a request says to be decoded with these penalties.

    Raises:
        InvalidValue: one that is no logits processor of ours, or with a value it takes from no
            request.
    """
    found: dict[str, Any] = {}
    for penalty in penalties:
        kind = type(penalty)
        if kind not in PENALTIES:
            known = [one.name for one in PENALTIES]
            raise InvalidValue("penalty", penalty.name, f"{', '.join(known)} under vllm", known)
        values = {key: getattr(penalty, name) for key, name in penalty_keys(kind).items()}
        if penalty_of(kind, values) != penalty:
            allowed = "parameters that a request can give"
            raise InvalidValue("penalty", str(penalty), allowed)
        found |= values
    return found

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
from lil.serving.values import PENALTIES, penalty_keys, penalty_of

if TYPE_CHECKING:
    from attention import Backend
    from lil.penalties import Penalty

#: Tokens of a block are a multiple of it in the engine's kernel for CPUs.
BLOCK = 32

#: What an estimate cannot know.
MEMORY = (
    "memory is what lil.decode would take: under vllm every method holds blocks of all its tokens"
)
NOT_HERE = "vLLM is not installed here: the sweep needs it (docs/serving.md)"


def is_installed() -> bool:
    """Whether the engine, which is not imported, is here."""
    return importlib.util.find_spec("vllm") is not None


def require_installed() -> None:
    """Look for the engine."""
    if not is_installed():
        allowed = "transformers; vllm where vLLM 0.32 is installed (docs/serving.md)"
        raise InvalidValue("runtime", "vllm", allowed)


def require_decodable(config: Config) -> None:
    """Refuse what the engine cannot do, or where nobody has compared its tokens."""
    own = "under vllm, which decodes in this process"
    allowed = {
        "dtype": (config.dtype == "float32", "float32: no other was compared"),
        "weights": (config.weights == "stored", "stored under vllm"),
        "device": (
            config.device in ("auto", "cpu"),
            "auto or cpu: a sweep decodes by vLLM's CPU build alone",
        ),
        "device_map": (config.device_map is None, "none under vllm"),
        "engine": (config.engine == "auto", "auto: kernels are vLLM's own"),
        "compile": (config.compile != "on", "off or auto: vLLM runs eagerly here"),
        "workers": (config.workers == 1, f"1 {own}"),
        "executor": (config.executor == "local", f"local {own}"),
        "temperature": (config.temperature == 0, "0: vLLM draws by random numbers of its own"),
        "beyond_positions": (
            not config.beyond_positions,
            "false: vLLM ends a request where the model's positions do",
        ),
    }
    for field, (holds, text) in allowed.items():
        if not holds:
            raise InvalidValue(field, getattr(config, field), text)
    for name in config.models:
        if name in PACKAGED or is_gguf(name):
            raise InvalidValue("model", name, "no GGUF file under vllm")
    for backend in build_backends(config):
        policy_of(backend)
    for penalties in build_penalties(config):
        request_values(penalties)
    for detector in build_detectors(config):
        if detector.signals:
            text = "one that reads tokens alone: vLLM shows no hidden states"
            raise InvalidValue("detector", detector.name, text)
        if continues_after_verdict(detector):
            text = "stop, which is replayed: under vllm nothing is generated after a verdict"
            raise InvalidValue("action", detector.action.name, text)


def require_layers(model: str, layers: int, backends: Iterable[Backend]) -> None:
    """Refuse methods that leave no layer of a model sparse."""
    for backend in backends:
        if backend.dense_layers >= layers:
            allowed = f"fewer than the {layers} layers of {model}"
            raise InvalidValue("dense_layers", backend.dense_layers, allowed)


def policy_of(backend: Backend) -> BlockPolicy | None:
    """The policy of a backend over the engine's blocks; None for full attention.

    Raises:
        InvalidValue: a method that has no such policy, or a parameter it cannot keep.
    """
    if type(backend) is Full:
        return None
    kind = POLICIES.get(backend.name)
    if kind is None or type(backend) is not kind.kind:
        known = ["full", *POLICIES]
        raise InvalidValue("backend", backend.name, f"{', '.join(known)} under vllm", known)
    policy = kind(backend, _block(backend, kind.grain))
    text = attention_text(backend)
    spec = METHODS.spec(text)
    if METHODS.get(spec.name, **spec.params).identity() != backend.identity():
        raise InvalidValue("backend", text, "a method that can be spelled for the engine")
    return policy


def _block(backend: Any, grain: str | None) -> int:
    """Tokens of the engine's block: what the method chooses by."""
    if grain is None:
        return BLOCK
    size = int(getattr(getattr(backend, "parts", backend), grain))
    if size % BLOCK:
        allowed = f"a multiple of {BLOCK} under vllm, for its kernel on CPUs"
        raise InvalidValue(grain, size, allowed)
    return size


def attention_text(backend: Backend) -> str:
    """A method as the engine reads it."""
    return str(Spec(backend.name, backend.params()))


def request_values(penalties: Sequence[Penalty]) -> dict[str, Any]:
    """The values of a request that is decoded with these penalties.

    Raises:
        InvalidValue: a penalty that no request can ask for with these parameters.
    """
    values: dict[str, Any] = {}
    for penalty in penalties:
        kind = type(penalty)
        if kind not in PENALTIES:
            known = [penalty.name for penalty in PENALTIES]
            raise InvalidValue("penalty", penalty.name, f"{', '.join(known)} under vllm", known)
        params = {key: getattr(penalty, name) for key, name in penalty_keys(kind).items()}
        if penalty_of(kind, params) != penalty:
            raise InvalidValue("penalty", str(penalty), "parameters that a request can give")
        values |= params
    return values

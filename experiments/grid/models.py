"""Models by name: which weights they are, and loading them for decoding."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.gguf_files import PACKAGED, converted, is_gguf, located
from experiments.reasoner import checkpoint_path

#: The model that ships with the project, by the name users type.
REASONER = "reasoner"

# Files that change a model's tokens: weights, architecture, stop tokens, vocabulary, template.
_DIGESTED = (
    *("*.safetensors", "pytorch_model*.bin", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "vocab.json", "merges.txt"),
)

# Entries of a config that name whose code computes attention or experts.
_KERNELS = (
    *("attn_implementation", "_attn_implementation", "experts_implementation"),
    "_experts_implementation",
)


@dataclass(frozen=True)
class ModelSource:
    """A model found but not loaded: its name as typed, where it is, and which weights it holds."""

    name: str
    location: str
    revision: str | None
    digest: str
    weights: str = "stored"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode with, on its device."""

    source: ModelSource
    model: Any
    tokenizer: Any

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes of each token id."""
        from lil import token_bytes

        return token_bytes(self.tokenizer)


def find(
    name: str, revision: str | None = None, *, here: bool = False, weights: str = "stored"
) -> ModelSource:
    """Locate a model and make sure that it can generate text, without loading its weights."""
    source = _located(name, revision, here)
    if weights == "stored":
        return source
    return replace(source, digest=f"{source.digest}+{weights}", weights=weights)


def _located(name: str, revision: str | None, here: bool) -> ModelSource:
    if name in PACKAGED or is_gguf(name):
        folder, identity = _converted(name)
        return ModelSource(name, folder, None, identity)
    location = name
    if name == REASONER:
        location = str(checkpoint_path())
        if not Path(location, "config.json").is_file():
            raise InvalidValue("model", name, f"its checkpoint at {location}, which is missing")
    if is_folder(location):
        return _folder(name, Path(location).expanduser())
    if "/" not in name and get_close_matches(name, [REASONER, *PACKAGED]):
        allowed = f"{REASONER}, a folder or GGUF file that exists, or a hub id"
        raise InvalidValue("model", name, allowed, [REASONER, *PACKAGED])  # the hub is not asked
    return _hub(name, revision, here)


def _converted(name: str) -> tuple[str, str]:
    """The folder that a GGUF file was converted into, and its identity."""
    where = located(name) if name in PACKAGED else (Path(os.path.expanduser(name)), None)
    folder, identity = converted(name, *where)
    return str(folder), identity


def is_folder(name: str) -> bool:
    """Whether a model's name is that of a folder or file, there or not, and not the hub's."""
    own = name in PACKAGED or is_gguf(name)
    return own or _exists(name) or name.startswith((".", "/", "~"))


def _exists(location: str) -> bool:
    try:
        return Path(location).exists()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False


def _folder(name: str, folder: Path) -> ModelSource:
    if not _exists(str(folder)) or not folder.is_dir():
        parent = str(folder.parent)
        near = [str(p) for p in folder.parent.glob("*/")] if _exists(parent) else []
        raise InvalidValue("model", name, "a folder with a model, or a hub id", near)
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("no table")
    except (OSError, ValueError, RecursionError) as error:
        allowed = f"a folder with a model's config.json ({error})"
        raise InvalidValue("model", name, allowed) from error
    _require_causal(name, values.get("architectures"), values.get("model_type"))
    _require_own_kernels(name, [values.get(key) for key in _KERNELS])
    files = sorted({path for pattern in _DIGESTED for path in folder.glob(pattern)})
    if not any(path.suffix in (".safetensors", ".bin") for path in files):
        raise InvalidValue("model", name, "a folder with weights (*.safetensors)")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return ModelSource(name, str(folder), None, digest.hexdigest()[:32])


def _hub(name: str, revision: str | None, here: bool) -> ModelSource:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            name, revision=revision, local_files_only=here, trust_remote_code=False
        )
    except Exception as error:  # the hub's client raises many kinds
        allowed = f"{REASONER}, a folder, or a hub id that can be reached ({_reason(error)})"
        raise InvalidValue("model", name, allowed, [REASONER]) from error
    _require_causal(name, config.architectures, config.model_type)
    _require_own_kernels(name, [getattr(config, key, None) for key in _KERNELS])
    commit = getattr(config, "_commit_hash", None)
    if not commit:
        raise InvalidValue("model", name, "a hub id whose commit is known, or a folder")
    return ModelSource(name, name, commit, commit)


def _require_own_kernels(name: str, implementations: list[object]) -> None:
    """A name with an owner is a repository's, whose compiled code would be fetched and run."""
    for value in implementations:
        if value is not None and "/" in str(value):
            raise InvalidValue("model", name, f"a model that runs no code of others (not {value})")


def _require_causal(name: str, architectures: Any, model_type: Any) -> None:
    """A model saved without its language-model head would load with a random one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if not isinstance(architectures, (list, type(None))):
        raise InvalidValue("model", name, "a config.json with a list of architectures")
    architectures = [str(item) for item in architectures or ()]
    causal: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        causal.update([names] if isinstance(names, str) else names)
    if not set(architectures) & causal:
        kind = ", ".join(architectures) or f"model type {model_type}"
        allowed = f"a model with a causal language-model head (it is {kind})"
        raise InvalidValue("model", name, allowed)


def resolve_device(device: str) -> str:
    """The device `auto` stands for, or the one named if it is there."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    choices = ["auto", "cpu", *["cuda"] * bool(count), *(f"cuda:{i}" for i in range(count))]
    if device not in choices:
        raise InvalidValue("device", device, f"one of {', '.join(choices)}", choices)
    return device


def load_tokenizer(source: ModelSource, *, here: bool = False) -> Any:
    """The tokenizer alone; nothing in a model's folder is asked about or run."""
    from transformers import AutoTokenizer

    # transformers would take a folder that is gone for a hub id.
    if source.revision is None and not Path(source.location).is_dir():
        allowed = f"a causal language model with its tokenizer (no folder {source.location})"
        raise InvalidValue("model", source.name, allowed)
    try:
        return AutoTokenizer.from_pretrained(
            source.location,
            revision=source.revision,
            local_files_only=here,
            trust_remote_code=False,
        )
    except Exception as error:  # whatever foreign files make of it
        allowed = f"a model with a tokenizer ({_reason(error)})"
        raise InvalidValue("model", source.name, allowed) from error


def _reason(error: Exception) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def load(source: ModelSource, dtype: str, device: str) -> LoadedModel:
    """Read the weights and the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        tokenizer = load_tokenizer(source)
        model, info = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=source.revision,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            trust_remote_code=False,
        )
    except InvalidValue:
        raise
    except Exception as error:  # whatever foreign weights make of it
        allowed = f"a causal language model with its tokenizer ({_reason(error)})"
        raise InvalidValue("model", source.name, allowed) from error
    if missing := sorted(info["missing_keys"]):
        allowed = f"complete weights ({len(missing)} missing, {missing[0]} the first)"
        raise InvalidValue("model", source.name, allowed)
    model = model.to(device)
    if source.weights == "int8":
        from experiments.grid.int8 import in_int8

        model = in_int8(model.eval(), device)
    return LoadedModel(source, model.eval(), tokenizer)


class Shelf:
    """Room for one model: it is let go before the next is read."""

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype, self.device = dtype, device
        self._loaded: LoadedModel | None = None

    def take(self, source: ModelSource) -> LoadedModel:
        """The model, loaded if it is not there already."""
        if self._loaded is None or self._loaded.source != source:
            self._loaded = None
            self._loaded = load(source, self.dtype, self.device)
        return self._loaded

    def clear(self) -> None:
        """Let the model go."""
        self._loaded = None


def use_threads(threads: int | None, workers: int = 1) -> int:
    """Set torch's CPU threads; their number."""
    import torch

    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        own = hasattr(os, "sched_getaffinity")  # cores this process may run on
        cores = len(os.sched_getaffinity(0)) if own else os.cpu_count() or 1
        threads = max(1, cores // workers)
    if threads is not None:
        torch.set_num_threads(threads)
    return int(torch.get_num_threads())


def quiet_transformers() -> None:
    """Loading bars, warnings and retries of transformers and its hub would break our own lines."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging as transformers

    transformers.disable_progress_bar()
    transformers.set_verbosity_error()
    hub.set_verbosity(logging.CRITICAL)


def find_tokenizer(name: str) -> Any:
    """A model's tokenizer alone, for texts from elsewhere; none of its weights are needed."""
    from transformers import AutoTokenizer

    location = str(checkpoint_path()) if name == REASONER else name
    if name in PACKAGED or is_gguf(name):
        location = _converted(name)[0]
    try:
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # the hub's client raises many kinds
        allowed = f"{REASONER}, a folder with a tokenizer, or a hub id ({_reason(error)})"
        raise InvalidValue("tokenizer", name, allowed, [REASONER]) from error

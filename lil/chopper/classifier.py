"""One linear layer that says from a hidden state whether a chunk is word salad."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attention.errors import InvalidValue

FORMAT = "lil-chopper-1"
#: What a file's metadata must hold with the format.
_FACTS: dict[str, type] = {"model": str, "block": int, "labeller": dict, "training": dict}


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear layer to one logit, and what it was trained on (Word Salad Chopper, section 3.1).

    Two are equal if they give the same numbers: same weights, same block.

    Args:
        weight: (hidden size,), float32.
        bias: of the logit.
        block: the block whose output it reads, counted from the last: -1 is the last.
        model: name of the model it was trained on.
        labeller, training: how it was made, JSON-able.
        source: where it was loaded from, None if it never was.

    Raises:
        InvalidValue: weights of another shape or not finite, or a block not below 0.
    """

    weight: Tensor
    bias: float
    block: int
    model: str
    labeller: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    def __post_init__(self) -> None:
        weight = self.weight.detach().to("cpu", torch.float32).clone()
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", float(torch.tensor(self.bias, dtype=torch.float32)))
        if weight.dim() != 1 or not len(weight):
            raise InvalidValue("weight", tuple(weight.shape), "one number a hidden unit")
        if not bool(torch.isfinite(weight).all()) or not abs(self.bias) < float("inf"):
            raise InvalidValue("weight", "not finite", "finite numbers")
        if not self.block < 0:
            raise InvalidValue("block", self.block, "below 0: counted from the last block, -1")

    @property
    def hidden_size(self) -> int:
        """Numbers in a hidden state."""
        return len(self.weight)

    @cached_property
    def digest(self) -> str:
        """What it computes, in 16 hexadecimal digits: of block, weights and bias."""
        numbers = [*self.weight.tolist(), self.bias]
        text = json.dumps([self.block, numbers])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Classifier) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        where = f", {self.source}" if self.source else ""
        return f"<Classifier {self.digest} for {self.model}, block {self.block}{where}>"

    def logits(self, states: Tensor) -> Tensor:
        """Logits (N,) in float64 of hidden states (N, hidden size)."""
        if states.dim() != 2 or states.shape[1] != self.hidden_size:
            allowed = f"{self.hidden_size} numbers each: it was trained on {self.model}"
            raise InvalidValue("hidden state", tuple(states.shape), allowed)
        wide = states.detach().to("cpu", torch.float64)
        logits = (wide * self.weight.double()).sum(dim=1) + self.bias
        if not bool(torch.isfinite(logits).all()):
            raise FloatingPointError("the model's hidden state is not finite")
        return logits

    def probability(self, state: Tensor) -> float:
        """The probability that the chunk before this state, (hidden size,), is word salad."""
        return float(torch.sigmoid(self.logits(state[None])[0]))

    # ------------------------------------------------------------ files

    def save(self, path: str | Path) -> Classifier:
        """Write a safetensors file; the classifier as `load` gives it."""
        facts = {"format": FORMAT, "hidden_size": self.hidden_size}
        facts |= {name: getattr(self, name) for name in _FACTS}
        # One entry: safetensors writes several in no certain order.
        metadata = {"chopper": json.dumps(facts, sort_keys=True)}
        tensors = {"weight": self.weight[None], "bias": torch.tensor([self.bias])}
        try:
            save_file(tensors, path, metadata=metadata)
        except (OSError, SafetensorError) as error:
            allowed = f"a file that can be written ({error})"
            raise InvalidValue("weights", str(path), allowed) from error
        return replace(self, source=str(path))

    @classmethod
    def load(cls, source: str | Path) -> Classifier:
        """A classifier from a safetensors file, or from `package:file` that a package ships."""
        path = _located(str(source))
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            allowed = f"a readable safetensors file ({error})"
            raise InvalidValue("weights", str(source), allowed) from error
        try:
            facts = json.loads(metadata["chopper"])
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']!r}, known is {FORMAT!r}")
            for name, kind in _FACTS.items():
                if type(facts[name]) is not kind:
                    raise ValueError(f"{name} is {facts[name]!r}")
            weight, bias, size = tensors["weight"], tensors["bias"], facts["hidden_size"]
            shapes = (tuple(weight.shape), tuple(bias.shape))
            if shapes != ((1, size), (1,)):
                raise ValueError(f"shapes {shapes} for a hidden size of {size}")
            known = {name: facts[name] for name in _FACTS}
            return cls(weight[0], float(bias[0]), source=str(source), **known)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            allowed = f"a file written by scripts/training/train_chopper.py ({reason})"
            raise InvalidValue("weights", str(source), allowed) from error


def _located(source: str) -> Path:
    package, colon, name = source.partition(":")
    path = Path(source).expanduser()
    if colon and not path.exists():
        path = _folder(package, source) / name
    if not path.is_file():
        near = [str(p) for p in path.parent.glob("*.safetensors")] if path.parent.is_dir() else []
        raise InvalidValue("weights", source, "a safetensors file that exists", near)
    return path


def _folder(package: str, source: str) -> Path:
    """Where a package lies, which is looked for and not imported: names of files run nothing."""
    allowed = "a file, or package:file of a package that is there"
    top, *inside = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise InvalidValue("weights", source, f"{allowed} ({error})") from error
    for place in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(place, *inside)).is_dir():
            return folder
    raise InvalidValue("weights", source, f"{allowed} (no package {package!r})")

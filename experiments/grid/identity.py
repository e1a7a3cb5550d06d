"""The identity of a decode run: a hash over what changes its tokens, and over nothing else.

In it: the model's weights, the data set's item and the very prompt, backend and parameters,
penalties, sampling and seed, dtype, and the runtime where it is not our own. Not in it: batch size,
device, executor, versions, detectors (they only cut a trace that exists), the cap (a longer trace
serves every shorter cap), how often costs are recorded.

Greedy decoding draws nothing, so there neither the seed nor top-k and top-p are part of it: another
seed must not decode the same tokens again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

from attention.errors import InvalidValue

#: What decodes: `lil.decode` over models of transformers, or an engine for serving.
OWN_RUNTIME = "transformers"
RUNTIMES = (OWN_RUNTIME, "vllm")

#: Raise it whenever the same fields would give other tokens, as after a change to a method.
VERSION = 1

#: Parameters that methods once had, with the value that did what the method does without them: what
#: was stored with them keeps its name.
FORMER: Mapping[str, Mapping[str, Any]] = {
    "h2o": {"positions": "absolute", "normalise": None, "decay": 1.0},
    "infllm": {"exc_block": None, "prefill": "dense"},
    "quest": {"rule": "kernel"},
}


def digest(value: object) -> str:
    """32 hexadecimal digits of a JSON-able value, the same whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prompt_digest(prompt_ids: Sequence[int]) -> str:
    """Identity of a prompt: its token ids, whatever template and tokenizer made them."""
    return digest([int(i) for i in prompt_ids])


def sampling(temperature: float, top_k: int | None, top_p: float, seed: int) -> dict[str, Any]:
    """The sampling fields that change tokens; at temperature 0 none of the others does."""
    if temperature == 0.0:
        return {"temperature": 0.0}
    return {"temperature": float(temperature), "top_k": top_k, "top_p": float(top_p), "seed": seed}


@dataclass(frozen=True)
class Configuration:
    """One configuration: all that its decode runs share.

    `model_digest` is the revision of a hub model or the digest of a folder's weights; `backend` is
    the method's name with all its resolved parameters; `penalties` one such table each. `role` is
    what it is compared for, as backends say it, and changes no token: full attention drawn with
    another seed is a "null". `runtime` is one of `RUNTIMES`.
    """

    model: str
    model_digest: str
    dataset: str
    backend: Mapping[str, Any]
    penalties: tuple[Mapping[str, Any], ...]
    sampling: Mapping[str, Any]
    dtype: str
    role: Literal["method", "control", "null"] = "method"
    runtime: str = OWN_RUNTIME

    def __post_init__(self) -> None:
        for method in (self.backend, *self.penalties):
            if not isinstance(method.get("name"), str):
                raise InvalidValue("name of a method", method.get("name"), "a text")
        budget = self.backend.get("budget")
        if not (budget is None or (type(budget) is int and budget > 0)):
            raise InvalidValue("budget", budget, "a whole number of tokens, or none")
        former = FORMER.get(self.backend["name"], {}).items()
        backend = {k: v for k, v in self.backend.items() if (k, v) not in former}
        object.__setattr__(self, "backend", backend)

    @property
    def budget(self) -> int | None:
        """Tokens a decode query may attend to; None for full attention."""
        budget = self.backend.get("budget")
        return None if budget is None else int(budget)

    @property
    def parameters(self) -> dict[str, Any]:
        """The backend's, but for its budget."""
        return {name: x for name, x in self.backend.items() if name not in ("name", "budget")}

    @property
    def is_full(self) -> bool:
        """Whether the others are measured against it: full attention, nothing else about it."""
        return bool(self.backend["name"] == "full" and not self.penalties and self.role != "null")

    @property
    def is_again(self) -> bool:
        """Whether it is full attention with another seed."""
        return bool(self.backend["name"] == "full" and self.role == "null")

    @property
    def name(self) -> str:
        """Backend, budget and penalties, as messages name them."""
        budget = [] if self.budget is None else [str(self.budget)]
        added = [f"+ {penalty['name']}" for penalty in self.penalties]
        name = [str(self.backend["name"]), *(["again"] if self.is_again else [])]
        return " ".join([*name, *budget, *added])

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits of all its fields."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """All its fields, ready for JSON."""
        return {**asdict(self), "penalties": [dict(p) for p in self.penalties]}


def run_id(configuration: Configuration, item_id: str, prompt: str, sample_index: int) -> str:
    """The identity of one decode run, 32 hexadecimal digits."""
    return digest(
        {
            "version": VERSION,
            "model_digest": configuration.model_digest,
            # A file moved to another folder holds the same problems.
            "dataset": PurePath(configuration.dataset).name,
            "backend": {**FORMER.get(configuration.backend["name"], {}), **configuration.backend},
            "penalties": [dict(penalty) for penalty in configuration.penalties],
            "sampling": dict(configuration.sampling),
            "dtype": configuration.dtype,
            "item_id": item_id,
            "prompt": prompt,
            "sample_index": sample_index,
            # What was stored before there was another keeps its name.
            **({} if configuration.runtime == OWN_RUNTIME else {"runtime": configuration.runtime}),
        }
    )

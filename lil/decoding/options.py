"""What the caller asks for, and how it is decoded: checked before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from torch import Tensor

from attention import Backend, Full
from attention.errors import InvalidValue, check_choice, check_int
from lil.decoding.sampling import Sampler
from lil.detectors import Detector
from lil.penalties import Penalty
from lil.trace import Signal

F = TypeVar("F", bound=Callable[..., Any])
#: Of `DecodeOptions.compile`.
MODES = ("off", "on", "auto", "kept")


@dataclass(frozen=True)
class DecodeOptions:
    """How prompts are decoded.

    Args:
        backend: how the model attends.
        engine: what decode queries read keys and values with, see `attention.Backend.on`.
        compile: whether decode steps are compiled (CPU) or captured as graphs (CUDA): "off", "on",
            "kept" where a step is there from earlier, or "auto" where the caps of all prompts leave
            enough to save. Compiling takes seconds to minutes; where it fails the model runs as it
            is, with a `CompileWarning`. Tokens stay but for the rounding of sums.
        penalties: templates, cloned per row.
        detectors: whose watchers, one a row, may end it.
        probes: detectors that read hidden states: `Trace.signals` holds their numbers; their
            verdicts count for nothing.
        speculate: tokens that the backend drafts before full attention checks them at once; 0 for
            none. The output is then full attention's, but for the rounding of sums, and
            `Trace.speculation` counts the accepted drafts.
        max_new_tokens: most generated tokens of a prompt without a cap of its own; `eos` and tokens
            that were dropped again are counted. The model's positions may end a row earlier.
        beyond_positions: go on behind the model's last position.
        batch_size: most rows at a time; "auto": as many as the memory that is free holds, by what
            the backend stores of each (`lil.decoding.filling`), and at most 32 on a CPU.
        temperature, top_k, top_p: see `lil.decoding.sampling.Sampler`; temperature 0 is greedy.
        seed: of the random streams.
        check_every: generated tokens between the checks of a trace.
        token_bytes: bytes of each token id, for tokenizers that `lil.token_bytes` cannot read.

    Raises:
        InvalidValue: a value that cannot be used.
    """

    backend: Backend = field(default_factory=Full)
    engine: str = "auto"
    compile: str = "off"
    penalties: Sequence[Penalty] = ()
    detectors: Sequence[Detector] = ()
    probes: Sequence[Detector] = ()
    speculate: int = 0
    max_new_tokens: int = 4096
    beyond_positions: bool = False
    batch_size: int | Literal["auto"] = 32
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    check_every: int = 50
    token_bytes: Sequence[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        value: Any = self.backend
        if not isinstance(value, Backend):
            allowed = "a backend, such as attention.get('quest', budget=256)"
            raise InvalidValue("backend", value, allowed)
        check_choice("compile", self.compile, MODES)
        example = "an object of lil.Detector, such as lil.detectors.get('guardian')"
        _require_all("detectors", self.detectors, Detector, example)
        _require_all("probes", self.probes, Detector, example)
        example = "a penalty of lil.penalties, or another lil.Penalty"
        _require_all("penalties", self.penalties, Penalty, example)
        for name in ("max_new_tokens", "check_every"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        if isinstance(size := self.batch_size, str):
            check_choice("batch_size", size, ("auto",))
        else:
            size = check_int("batch_size", size, 1, "an integer of at least 1, or 'auto'")
            object.__setattr__(self, "batch_size", size)
        object.__setattr__(self, "seed", check_int("seed", self.seed))
        object.__setattr__(self, "speculate", check_int("speculate", self.speculate, 0))
        if not isinstance(self.beyond_positions, bool):
            raise InvalidValue("beyond_positions", self.beyond_positions, "True or False")
        Sampler(self.temperature, self.top_k, self.top_p)
        for detector in self.detectors:
            if detector.action.dense and not self.backend.keeps_all:
                allowed = f"a backend that keeps every key: {self.backend.name} has dropped some"
                raise InvalidValue("on_stop", detector.action.name, allowed)
        for probe in self.probes:
            if not probe.signals:
                raise InvalidValue("probes", probe.name, "detectors that read hidden states")
        if self.speculate:
            self._check_speculation()

    @property
    def reheats(self) -> bool:
        """Whether a row may get another temperature than the run's."""
        return any(detector.action.heat[1] for detector in self.detectors)

    def _check_speculation(self) -> None:
        backend = self.backend
        if self.reheats:
            allowed = "0 with reheat: drafts are made and checked at the run's temperature"
            raise InvalidValue("speculate", self.speculate, allowed)
        if not (backend.keeps_all and backend.rewindable):
            allowed = f"0 under {backend.name}, which cannot take back what drafts made it drop"
            raise InvalidValue("speculate", self.speculate, allowed + " or count")
        if reader := next((x for x in (*self.detectors, *self.probes) if x.signals), None):
            allowed = f"0 with {reader.name}, which reads the states of each step"
            raise InvalidValue("speculate", self.speculate, allowed)


def _require_all(name: str, value: Any, kind: type, allowed: str) -> None:
    if isinstance(value, (str, type)) or not isinstance(value, Sequence):
        raise InvalidValue(name, value, "a list of them")
    for at, item in enumerate(value):
        if not isinstance(item, kind):
            raise InvalidValue(f"{name}[{at}]", item, allowed)


def with_options(options: DecodeOptions | None, spelled: dict[str, Any]) -> DecodeOptions:
    """The options of an object and of keywords; keywords count first."""
    known = [item.name for item in fields(DecodeOptions)]
    for name in spelled:
        if name not in known:
            raise InvalidValue("option", name, "one of " + ", ".join(known), known)
    return replace(options or DecodeOptions(), **spelled)


def shows_options(function: F) -> F:
    """Let the signature of a function that takes `**spelled` show the options."""
    own = inspect.signature(function)
    made = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    defaults = DecodeOptions()
    made += [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(defaults, item.name),
            annotation=item.type,
        )
        for item in fields(DecodeOptions)
    ]
    function.__signature__ = own.replace(parameters=made)  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    Args:
        prompt: text, or token ids.
        max_new_tokens: most generated tokens; None takes the run's.
        item_id: part of the random stream's seed, with the run's seed and `sample_index`; by
            default the request's place as text.
        sample_index: which sample of an item this is.
        forced: known first generated tokens: read with the prompt, counted as generated, charged as
            if decoded. Not with detectors that act or read the model.
        signals: `Trace.signals` of these tokens from an earlier run, for probes.
    """

    prompt: str | Sequence[int]
    max_new_tokens: int | None = None
    item_id: str | None = None
    sample_index: int = 0
    forced: Sequence[int] = ()
    signals: Mapping[str, Signal] = field(default_factory=dict)

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Token ids of a prompt that is no text."""
        if isinstance(self.prompt, str):
            raise TypeError("a text has no token ids before it is resolved")
        return self.prompt


def positions_of(config: Any) -> int | None:
    """Positions of a model of this config, with a stretched rope's; None where it names none.

    Linear and dynamic scaling stretch the positions that the config names, unless it names those of
    the training too.
    """
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or rope.get("type")
    named = most if kind in ("linear", "dynamic") else None
    original, factor = rope.get("original_max_position_embeddings", named), rope.get("factor")
    if isinstance(original, int) and isinstance(factor, (int, float)):
        return max(most, int(original * factor))
    return most


def resolve(
    model: Any, tokenizer: Any, prompts: Sequence[Any], options: DecodeOptions, vocabulary: int
) -> list[Request]:
    """Prompts in token ids, with caps and item ids.

    A cap is at most what the model's positions leave behind the prompt, unless the options say
    otherwise.

    Raises:
        InvalidValue: prompts of another kind, padded ones, an empty one, an id outside the
            vocabulary, a cap below 1, forced tokens beyond what the backend computes exactly, or a
            prompt that fills the model's positions.
    """
    most = None if options.beyond_positions else positions_of(model.config)
    _require_list(prompts, getattr(tokenizer, "pad_token_id", None))
    requests = []
    for index, prompt in enumerate(prompts):
        requested = prompt if isinstance(prompt, Request) else Request(prompt)
        text: Any = requested.prompt
        cap = (
            options.max_new_tokens if requested.max_new_tokens is None else requested.max_new_tokens
        )
        request = replace(
            requested,
            prompt=_ids(
                f"prompts[{index}]",
                encode(tokenizer, text) if isinstance(text, str) else text,
            ),
            max_new_tokens=check_int(f"max_new_tokens[{index}]", cap, 1),
            item_id=str(index) if requested.item_id is None else requested.item_id,
            forced=_ids(f"forced[{index}]", requested.forced),
        )
        _check(index, request, vocabulary, options.backend.exact_until)
        requests.append(request if most is None else _within(index, request, most))
    return requests


def _within(index: int, request: Request, positions: int) -> Request:
    """The request, cut where the model's positions end."""
    read, room = len(request.prompt_ids), positions - len(request.prompt_ids)
    if room < 1 or len(request.forced) > room:
        read += len(request.forced)
        allowed = f"fewer than the {positions} positions of the model (beyond_positions=True reads "
        allowed += "and writes beyond them)"
        raise InvalidValue(f"prompts[{index}]", f"{read} tokens", allowed)
    assert request.max_new_tokens is not None  # it has been resolved
    return replace(request, max_new_tokens=min(request.max_new_tokens, room))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a prompt with special tokens; those that it begins with are not repeated."""
    ids: list[int] = list(tokenizer(text)["input_ids"])
    plain: list[int] = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    more = len(ids) - len(plain)
    before = next((n for n in range(1, more + 1) if ids[n : n + len(plain)] == plain), 0)
    return ids[before:] if before and plain[:before] == ids[:before] else ids


def _require_list(prompts: Any, pad: int | None) -> None:
    """Refuse what is no list of prompts, and prompts that a tokenizer has padded."""
    texts = "a list of texts, of lists of token ids, or of lil.Request"
    if isinstance(prompts, str):
        raise InvalidValue("prompts", prompts, f"a list of prompts, not one text: {texts}")
    if isinstance(prompts, Mapping):
        allowed = f"{texts}, not what a tokenizer gives: pass the texts themselves"
        raise InvalidValue("prompts", type(prompts).__name__, allowed)
    rows = prompts.tolist() if isinstance(prompts, Tensor) else list(prompts)
    ids = [row for row in rows if isinstance(row, (list, tuple))]
    ends = [(row[0], row[-1]) for row in ids if row]
    width = {len(row) for row in ids}
    if pad is None or len(ends) < 2 or len(width) > 1 or len(ids) < len(rows):
        return
    padded = [pad in end for end in ends]
    if any(padded) and not all(end[0] == pad for end in ends):
        allowed = f"{texts}, without padding (id {pad}): each prompt has its own length"
        raise InvalidValue("prompts", f"{len(rows)} rows of {max(width)} ids", allowed)


def _ids(where: str, value: Any) -> tuple[int, ...]:
    """Token ids, if that is what they are."""
    rows = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(rows, Mapping) or not isinstance(rows, Sequence | type(None)):
        rows = [rows]
    try:
        return tuple(check_int(where, item, allowed="an integer") for item in rows or ())
    except InvalidValue as error:
        allowed = "a text, a list of token ids, or a lil.Request"
        if isinstance(error.value, Mapping):
            allowed += (
                "; of chat messages "
                'tokenizer.apply_chat_template(..., add_generation_prompt=True)["input_ids"]'
            )
        raise InvalidValue(where, error.value, allowed) from None


def _check(index: int, request: Request, vocabulary: int, exact_until: float) -> None:
    if not request.prompt_ids:
        raise InvalidValue(f"prompts[{index}]", "", "at least one token")
    for name, ids in (("prompts", request.prompt_ids), ("forced", request.forced)):
        wrong = next((i for i in ids if not 0 <= i < vocabulary), None)
        if wrong is not None:
            allowed = f"token ids from 0 to {vocabulary - 1}"
            raise InvalidValue(f"{name}[{index}]", wrong, allowed)
    longest = len(request.prompt_ids) + len(request.forced)
    if request.forced and longest > exact_until:
        allowed = (
            f"at most {exact_until} tokens with the prompt: beyond that this backend no longer "
            "equals full attention, and a prefix read at once is not a prefix decoded"
        )
        raise InvalidValue(f"forced[{index}]", f"{longest} tokens", allowed)

"""The configuration of a sweep: plain values.

Every key is declared once, with its default, its check and its help text; the command line is
generated from these declarations, so the two cannot disagree.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta

from attention.errors import InvalidValue
from attention.spec import split
from experiments.grid import schema
from experiments.grid.identity import OWN_RUNTIME, RUNTIMES

DTYPES = ("float32", "float64", "bfloat16", "float16")

#: What linear layers multiply with: weights as they are stored, or whole numbers of 8 bits.
WEIGHTS = ("stored", "int8")
ENGINES = ("cpp", "triton", "flash", "torch")
_SCORERS = ("auto", "exact", "math", "stated", "none")

_CAP = re.compile(r"(?:(?P<times>[1-9]\d{0,8})x-full|(?P<tokens>[1-9]\d{0,8}))")

#: Parameters of a method by name, as TOML has them.
Parameters: TypeAlias = dict[str, Any]

#: Pieces of a list that may be those of a path with commas.
_PIECES = 16

#: What a column of a data set can be: a prompt is a question that is used as it is, messages are
#: a chat.
COLUMN_ROLES = ("question", "prompt", "messages", "answer", "id")


_names_list = schema.typed(tuple[schema.Name, ...], "one or more names, separated by commas")
_count = schema.typed(schema.Count, "a whole number, at least 1, at most 10^9")
_threads = schema.typed(Annotated[int, Meta(ge=1, le=1024)], "a whole number from 1 to 1024")
_place = schema.typed(Annotated[int, Meta(ge=0, le=10**9)], "a whole number, at least 0")
_seed = schema.typed(
    Annotated[int, Meta(ge=0, le=2**63 - 1)], "a whole number, at least 0, below 2^63"
)
_temperature = schema.typed(Annotated[float, Meta(ge=0, le=100)], "a number from 0 (greedy) to 100")
_share = schema.typed(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1")
_yes_or_no = schema.typed(bool, "true or false")
_text = schema.typed(schema.Name, "a name")
_tables_of_parameters = schema.typed(dict[str, Parameters], "a table of parameters for each method")
_text_or_none = schema.unless(_text, "none")
_count_or_none = schema.unless(_count, "none", 0, "0")


def _names(key: str, value: object) -> tuple[str, ...]:
    """Texts `a,b(c,d)` in their parts; lists as they are, each name once."""
    if not value:
        raise InvalidValue(key, value, "at least one name")
    parts = _parts(value) if isinstance(value, str) else value
    return tuple(dict.fromkeys(_names_list(key, parts)))


def _parts(text: str) -> list[str]:
    """The parts of a list, in which commas of a path that exists separate nothing."""
    pieces = text.split(",")
    spans = itertools.combinations(range(min(len(pieces), _PIECES) + 1), 2)
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        path = ",".join(pieces[start:end]).strip()
        file = re.sub(r":\w+$", "", path)  # an action may follow
        if end - start > 1 and os.path.exists(os.path.expanduser(file)):
            left, right = (",".join(side) for side in (pieces[:start], pieces[end:]))
            return [*(_parts(left) if left else []), path, *(_parts(right) if right else [])]
    return split(text)


def _names_or_none(key: str, value: object) -> tuple[str, ...]:
    return () if not value or value in ("none", ["none"], ("none",)) else _names(key, value)


def _counts(key: str, value: object) -> tuple[int, ...]:
    parts = split(value) if isinstance(value, str) else value
    parts = [parts] if isinstance(parts, int) else parts
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidValue(key, value, "whole numbers of tokens, separated by commas")
    return tuple(dict.fromkeys(_count(key, part) for part in parts))


def _columns(key: str, value: object) -> tuple[str, ...]:
    pairs = _names_or_none(key, value)
    roles = [role for role, equals, column in (p.partition("=") for p in pairs) if column]
    if len(roles) < len(pairs) or not set(roles) <= set(COLUMN_ROLES):
        allowed = f"ROLE=COLUMN with one of {', '.join(COLUMN_ROLES)}"
        raise InvalidValue(key, ",".join(pairs), allowed, COLUMN_ROLES)
    if len(set(roles)) < len(roles) or len({"question", "prompt", "messages"} & set(roles)) > 1:
        allowed = "one column for the question, prompt or messages, the answer and the id each"
        raise InvalidValue(key, ",".join(pairs), allowed)
    return pairs


def _template_values(key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, Mapping):  # a table of a preset, or of a caller in Python
        value = [f"{name}={json.dumps(item)}" for name, item in value.items()]
    pairs = _names_or_none(key, value)
    names = [name for name, equals, _ in (pair.partition("=") for pair in pairs) if equals]
    if len(set(names)) < len(pairs) or not all(name.isidentifier() for name in names):
        raise InvalidValue(key, ",".join(pairs), "NAME=VALUE, each name once")
    return pairs


def _scorer(key: str, value: object) -> str:
    module, colon, name = str(schema.shown(value)).partition(":")
    if module == "gym" and colon:
        allowed = "auto, by which a generator judges its own problems"
        raise InvalidValue(key, schema.shown(value), allowed)
    own = colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    if value not in _SCORERS and not own:
        allowed = f"one of {', '.join(_SCORERS)}, or a function of yours as module:function"
        raise InvalidValue(key, schema.shown(value), allowed, _SCORERS)
    return str(value)


def _rows(key: str, value: object) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return int(_count(key, value))
    except InvalidValue as error:
        allowed = f"{error.allowed}, or auto"
        raise InvalidValue(key, error.value, allowed, ("auto",)) from error


def _cap(key: str, value: object) -> str:
    if isinstance(value, bool) or not _CAP.fullmatch(str(schema.shown(value))):
        allowed = "'2x-full', '4x-full' (times full attention's tokens) or a number of tokens"
        raise InvalidValue(key, schema.shown(value), allowed, ("2x-full", "4x-full"))
    return str(value)


def _tables(key: str, value: object) -> dict[str, Parameters]:
    tables: dict[str, Parameters] = _tables_of_parameters(key, value)
    for method, params in tables.items():
        if "name" in params:
            raise InvalidValue("name", params["name"], f"no name in {key}.{method}: it is one")
    try:  # all of them go into manifests
        json.dumps(tables, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        allowed = f"parameters that are texts, finite numbers, lists or tables ({error})"
        raise InvalidValue(key, schema.shown(value), allowed) from error
    return tables


def _key(
    group: str, default: Any, check: schema.Check, help_text: str, metavar: str | None = None
) -> Any:
    """A field of `Config` with what the command line and the loader need to know of it."""
    metadata = {"check": check, "help": help_text, "group": group, "metavar": metavar}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


_problems = partial(_key, "what to run")
_attention = partial(_key, "attention")
_sampling = partial(_key, "sampling")
_stopping = partial(_key, "stopping")
_machine = partial(_key, "machine")


@dataclass(frozen=True)
class Config:
    """One grid of decode runs, lengths in tokens; `presets.load` builds it from checked values."""

    models: tuple[str, ...] = _problems(
        ("reasoner",),
        _names,
        "hub ids, folders or GGUF files; 'reasoner' ships with the project",
        "ID|DIR|FILE",
    )
    revision: str | None = _problems(None, _text_or_none, "commit, tag or branch of a hub model")
    datasets: tuple[str, ...] = _problems(
        ("easy", "medium", "hard"),
        _names,
        "easy, medium, hard (or reasoner for all three), gsm8k, math500, aime (a revision of the "
        "hub behind an @: gsm8k@main), gym:NAME (a generator of reasoning-gym), needles (retrieval "
        "from long texts), both with parameters in brackets, or JSONL or CSV files",
        "NAME|FILE",
    )
    split: str = _problems(
        "study",
        schema.one_of("study", "test", "heldout", "train"),
        "split of the reasoner's problems",
    )
    limit: int | None = _problems(
        200, schema.unless(_count, "all"), "the first N problems of each data set, or all", "N"
    )
    offset: int = _problems(
        0,
        _place,
        "leave out the first N problems of each data set: --limit counts behind them",
        "N",
    )
    sample: int | None = _problems(
        None,
        _count_or_none,
        "N problems of each data set at random instead, by the seed; the same for all models",
        "N",
    )
    columns: tuple[str, ...] = _problems(
        (),
        _columns,
        "columns of data sets: question (or prompt, used as it is, or messages, a chat), answer, "
        "id",
        "question=...,answer=...,id=...",
    )
    scorer: str = _problems(
        "auto",
        _scorer,
        "how answers are judged: exact and math read the box, stated whatever states an answer, "
        "none (lengths alone), a function of yours, or auto: by what the prompt asks for",
        "NAME|MODULE:FUNCTION",
    )
    prompt_template: str | None = _problems(
        None,
        _text_or_none,
        "a text with {problem} or names of columns in it, used for every problem",
        "FILE",
    )
    system: str | None = _problems(
        None, _text_or_none, "system prompt, for models with a chat template", "TEXT"
    )
    template_values: tuple[str, ...] = _problems(
        (),
        _template_values,
        "values for the model's chat template, such as enable_thinking=false",
        "NAME=VALUE,...",
    )
    backends: tuple[str, ...] = _attention(
        ("full", "h2o", "sink", "quest", "infllm"),
        _names,
        "attention backends; full attention always runs, the others are measured against it; a "
        "budget of its own in brackets: oracle(budget=16)",
        "full,h2o,...",
    )
    budgets: tuple[int, ...] = _attention(
        (128, 256, 512, 1024), _counts, "tokens one decode query may attend to", "32,64,..."
    )
    null: str = _attention(
        "auto",
        schema.one_of("auto", "seed", "noise", "none"),
        "full attention compared with itself, which all claims are tested against: seed, drawn "
        "again with another seed (needs a temperature above 0); noise, with a little noise; auto: "
        "seed when sampling, noise in half precision or 8 bits, else none",
    )
    backend_params: Mapping[str, Parameters] = _attention(
        {}, _tables, "parameters of a backend, as in backend_params.quest.page"
    )
    penalties: tuple[str, ...] = _sampling(
        ("none",),
        lambda key, value: _names(key, value or "none"),
        "penalties on the logits, one at a time; none always runs, the others are measured "
        "against it",
        "none,lz,...",
    )
    penalty_params: Mapping[str, Parameters] = _sampling(
        {}, _tables, "parameters of a penalty, as in penalty_params.lz.alpha"
    )
    detectors: tuple[str, ...] = _stopping(
        ("guardian",),
        _names_or_none,
        "early-stop detectors, or none; each is also compared with no detector; what follows a "
        "verdict after a colon: guardian:answer, guardian:regenerate, guardian:densify, "
        "guardian:reheat; parameters of its own in brackets: guardian(f=250)",
        "NAME[:ACTION]|FILE",
    )
    detector_params: Mapping[str, Parameters] = _stopping(
        {}, _tables, "parameters of a detector, as in detector_params.guardian.f"
    )
    action_params: Mapping[str, Parameters] = _stopping(
        {}, _tables, "parameters of an action, as in action_params.answer.cue"
    )
    cap: str = _stopping(
        "2x-full",
        _cap,
        "most tokens of a sparse run: 2x-full, 4x-full (read at 2 as well), or a number for all",
    )
    max_new_tokens: int = _stopping(
        16384,
        _count,
        "most tokens of a full-attention run; never more than the model's positions leave",
        "N",
    )
    beyond_positions: bool = _stopping(
        False, _yes_or_no, "decode beyond the positions that the model's config names"
    )
    temperature: float = _sampling(0.0, _temperature, "0 is greedy")
    top_k: int | None = _sampling(None, _count_or_none, "sample from the k likeliest tokens")
    top_p: float = _sampling(
        1.0, _share, "sample from the likeliest tokens of this total probability"
    )
    samples_per_problem: int = _sampling(
        1, _count, "outputs drawn for each problem (needs a temperature above 0)", "N"
    )
    seed: int = _sampling(0, _seed, "of sampling and of the bootstrap", "N")
    dtype: str = _machine("bfloat16", schema.one_of(*DTYPES), ", ".join(DTYPES))
    weights: str = _machine(
        "stored",
        schema.one_of(*WEIGHTS),
        "stored, in the dtype; int8: linear layers multiply whole numbers of 8 bits, on CPUs",
    )
    device: str = _machine("auto", _text, "auto takes a GPU where there is one; cpu, cuda, cuda:1")
    engine: str = _machine(
        "auto",
        schema.one_of("auto", *ENGINES),
        f"what decode queries read keys and values with: {', '.join(ENGINES)}; auto takes the "
        "fastest that works here",
    )
    compile: str = _machine(
        "auto",
        schema.one_of("off", "on", "auto"),
        "decode steps by torch's compiler, or as CUDA graphs; auto: where one is kept, or what "
        "is left saves more than compiling takes",
    )
    batch_size: int | str = _machine(
        32,
        _rows,
        "rows decoded together; auto: as many as fit into the device's free memory, by what each "
        "backend stores of a row, and at most 32 on a CPU",
        "N|auto",
    )
    threads: int | None = _machine(
        None,
        schema.unless(_threads, "none", 0, "0"),
        "CPU threads of each worker; all cores, shared out, unless OMP_NUM_THREADS says otherwise",
        "N",
    )
    workers: int = _machine(
        1, _threads, "processes that decode at the same time, each with a model of its own", "N"
    )
    runtime: str = _machine(
        OWN_RUNTIME,
        schema.one_of(*RUNTIMES),
        "what decodes: transformers, by lil.decode; vllm, the engine with our sparse attention, on "
        "a CPU; part of what a run is",
    )
    check_every: int = _machine(
        50, _count, "tokens between two recorded points of cost and compressed size", "N"
    )

    def __post_init__(self) -> None:
        if self.samples_per_problem > 1 and self.temperature == 0.0:
            allowed = "1 at temperature 0, where every sample would be the same"
            raise InvalidValue("samples_per_problem", self.samples_per_problem, allowed)
        if self.offset and self.sample is not None:
            allowed = "0 with --sample, which draws from all problems"
            raise InvalidValue("offset", self.offset, allowed)
        if self.null == "seed" and self.temperature == 0.0:
            raise InvalidValue("null", "seed", "noise at temperature 0, where no seed is used")
        if self.batch_size == "auto" and self.workers > 1:
            allowed = "a number with several workers, which share the memory"
            raise InvalidValue("batch_size", "auto", allowed)

    #: Whether somebody typed it, rather than a store having it.
    typed: ClassVar[bool] = True

    def following(self) -> AbstractContextManager[None]:
        """Names of classes are looked up in it: those that are typed may be import paths."""
        return contextlib.nullcontext()

    def follows(self, path: str) -> bool:  # noqa: ARG002 - see `StoredConfig`
        """Whether what an import path names may be imported."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """All keys with their resolved values, ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(Config)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return copy.deepcopy(plain)

    def decode_options(self) -> dict[str, Any]:
        """Options of every decode, under the names that `lil.decode` has."""
        sampling = ("temperature", "top_k", "top_p", "seed")
        names = ("engine", "batch_size", *sampling, "check_every", "beyond_positions")
        # A worker compiles before its first job; the jobs use what is kept then.
        compile_ = "off" if self.compile == "off" else "kept"
        return {name: getattr(self, name) for name in names} | {"compile": compile_}

    @property
    def rows(self) -> int:
        """Rows decoded together, as far as is known before: 32 where the memory decides."""
        return self.batch_size if isinstance(self.batch_size, int) else 32

    @property
    def number_format(self) -> str:
        """The coarsest format of numbers."""
        return self.dtype if self.weights == "stored" else self.weights

    @property
    def arithmetic(self) -> str:
        """The number format, for readers."""
        mixed = f"{self.dtype}, linear layers in {self.weights}"
        return self.dtype if self.weights == "stored" else mixed

    @property
    def cap_factor(self) -> int | None:
        """Times full attention's length that a sparse run may have; None for a number of tokens."""
        match = _CAP.fullmatch(self.cap)
        assert match is not None  # checked when the value came in
        return int(match["times"]) if match["times"] else None

    @property
    def factors(self) -> tuple[int, ...]:
        """The cap as times full attention's length, and 2, 4, ... below it; none for a number."""
        most = self.cap_factor
        return () if most is None else (*(2**n for n in range(1, 31) if 2**n < most), most)

    @property
    def full_cap(self) -> int:
        """Most tokens of a full-attention run: both sides share a cap that is a number."""
        return self.max_new_tokens if self.cap_factor else min(int(self.cap), self.max_new_tokens)

    def sparse_cap(self, full_tokens: int | None, factor: int | None = None) -> int:
        """Most tokens a sparse run may generate, from what full attention took (None: unknown).

        Where full attention failed on a problem there is no length to double, so its own cap holds.
        """
        times = factor or self.cap_factor
        if times is None or full_tokens is None:
            return self.full_cap
        return times * full_tokens


def check(values: Mapping[str, object], source: str) -> dict[str, Any]:
    """Every value, checked and of its type; an unknown key is refused with the nearest match."""
    known = {f.name: f.metadata["check"] for f in dataclasses.fields(Config)}
    checked = {}
    for key, value in values.items():
        if key not in known:
            allowed = f"a key of a sweep ({', '.join(known)})"
            raise InvalidValue(f"key in {source}", key, allowed, known)
        checked[key] = known[key](key, value)
    return checked

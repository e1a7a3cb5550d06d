"""What a sweep is asked to do: plain values, resolved as defaults < preset < command line.

Every key is declared once, with its default, its check, its flag and its help text; the command
line is generated from these declarations, so the two cannot disagree.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from attention import spelling
from attention.errors import InvalidValue
from attention.spelling import Twins, over, setting, split
from experiments.grid import schema

if TYPE_CHECKING:
    from attention.registry import Registry

DTYPES = ("float32", "float64", "bfloat16", "float16")
ENGINES = ("cpp", "triton", "flash", "torch")
_SCORERS = ("auto", "exact", "math", "none")
EXECUTORS = ("local", "ray")

_CAP = re.compile(r"(?:(?P<times>[1-9]\d{0,8})x-full|(?P<tokens>[1-9]\d{0,8}))")

#: What a column of a data set can be: a prompt is a question that is used as it is, messages are
#: a chat.
COLUMN_ROLES = ("question", "prompt", "messages", "answer", "id")


# ---------------------------------------------------------------- checks of one value each


def _as(kind: Any, allowed: str) -> Callable[[str, object], Any]:
    """The check that a value is of this type, named in the words of its message."""
    return lambda key, value: schema.typed(key, value, kind, allowed)


_names_list = _as(tuple[schema.Name, ...], "one or more names, separated by commas")
_count = _as(schema.Count, "a whole number, at least 1, at most 10^9")
_threads = _as(Annotated[int, Meta(ge=1, le=1024)], "a whole number from 1 to 1024")
_gpus = _as(Annotated[float, Meta(ge=0, le=64)], "a number from 0 to 64, or auto")
_seed = _as(Annotated[int, Meta(ge=0, le=2**63 - 1)], "a whole number, at least 0, below 2^63")
_temperature = _as(Annotated[float, Meta(ge=0, le=100)], "a number from 0 (greedy) to 100")
_share = _as(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1")
_yes_or_no = _as(bool, "true or false")
_text = _as(schema.Name, "a name")


def _parts(value: object) -> object:
    """The parts of a text `a,b(c,d)`; other values as they are."""
    return split(value) if isinstance(value, str) else value


def _names(key: str, value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_names_list(key, _parts(value))))


def _some_names(key: str, value: object) -> tuple[str, ...]:
    if not value:
        raise InvalidValue(key, value, "at least one name")
    return _names(key, value)


def _names_or_none(key: str, value: object) -> tuple[str, ...]:
    return () if not value or value in ("none", ["none"], ("none",)) else _names(key, value)


def _names_or_just_none(key: str, value: object) -> tuple[str, ...]:
    return _names(key, value or "none")


def _count_or_none(key: str, value: object) -> int | None:
    return None if value in (None, "none", 0, "0") else int(_count(key, value))


def _threads_or_none(key: str, value: object) -> int | None:
    return None if value in (None, "none", 0, "0") else int(_threads(key, value))


def _gpus_or_auto(key: str, value: object) -> float | None:
    return None if value in (None, "none", "auto") else float(_gpus(key, value))


def _count_or_all(key: str, value: object) -> int | None:
    return None if value is None or value == "all" else int(_count(key, value))


def _counts(key: str, value: object) -> tuple[int, ...]:
    parts = [value] if isinstance(value, int) else _parts(value)
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidValue(key, value, "whole numbers of tokens, separated by commas")
    return tuple(dict.fromkeys(_count(key, part) for part in parts))


def _text_or_none(key: str, value: object) -> str | None:
    return None if value is None or value == "none" else str(_text(key, value))


def _one_of(*allowed: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in allowed:
            raise InvalidValue(key, value, f"one of {', '.join(allowed)}", allowed)
        return str(value)

    return check


def _columns(key: str, value: object) -> tuple[str, ...]:
    pairs = _names_or_none(key, value)
    roles = [pair.partition("=")[0] for pair in pairs]
    for pair, role in zip(pairs, roles, strict=True):
        if role not in COLUMN_ROLES or not pair.partition("=")[2]:
            allowed = f"ROLE=COLUMN with one of {', '.join(COLUMN_ROLES)}"
            raise InvalidValue(key, pair, allowed, COLUMN_ROLES)
    if len(set(roles)) < len(roles) or len({"question", "prompt", "messages"} & set(roles)) > 1:
        raise InvalidValue(
            key,
            ",".join(pairs),
            "one column for the question, prompt or messages, the answer and the id each",
        )
    return pairs


def _scorer(key: str, value: object) -> str:
    module, colon, name = str(schema.shown(value)).partition(":")
    own = colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    if value not in _SCORERS and not own:
        allowed = f"one of {', '.join(_SCORERS)}, or a function of yours as module:function"
        raise InvalidValue(key, value, allowed, _SCORERS)
    return str(value)


def _cap(key: str, value: object) -> str:
    if isinstance(value, bool) or not _CAP.fullmatch(str(schema.shown(value))):
        raise InvalidValue(
            key,
            schema.shown(value),
            "'2x-full', '4x-full' (so many times what full attention took) or a number of tokens",
            ("2x-full", "4x-full"),
        )
    return str(value)


def _tables(key: str, value: object) -> dict[str, dict[str, Any]]:
    allowed = "a table of parameters for each method"
    tables: dict[str, dict[str, Any]]
    tables = schema.typed(key, value, dict[str, dict[str, Any]], allowed)
    for method, params in tables.items():
        if "name" in params and key != "action_params":  # where it is refused in other words
            raise InvalidValue("name", params["name"], f"no name in {key}.{method}: it is one")
    try:  # they go into manifests, those of methods nobody asked for as well
        json.dumps(tables, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        allowed = f"parameters that are texts, finite numbers, lists or tables ({error})"
        raise InvalidValue(key, schema.shown(value), allowed) from error
    return tables


def _key(
    default: Any,
    check: Callable[[str, object], Any],
    help_text: str,
    *,
    group: str,
    flag: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of `Config` with everything the command line and the loader need to know of it."""
    metadata = {
        "check": check,
        "help": help_text,
        "group": group,
        "flag": flag,
        "metavar": metavar,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# ---------------------------------------------------------------- the configuration


@dataclass(frozen=True)
class Config:
    """One grid of decode runs: models x datasets x backends x budgets x penalties.

    Lengths and budgets are in tokens. Build it with `load`, which checks every value.
    """

    models: tuple[str, ...] = _key(
        ("reasoner",),
        _some_names,
        "hub ids or folders; 'reasoner' ships with the project",
        group="what to run",
        flag="--model",
        metavar="ID|DIR",
    )
    revision: str | None = _key(
        None,
        _text_or_none,
        "commit, tag or branch of a hub model",
        group="what to run",
        flag="--revision",
    )
    datasets: tuple[str, ...] = _key(
        ("easy", "medium", "hard"),
        _some_names,
        "easy, medium, hard (or reasoner for all three), gsm8k, math500, aime (a revision of the "
        "hub behind an @: gsm8k@main), or JSONL or CSV files",
        group="what to run",
        flag="--dataset",
        metavar="NAME|FILE",
    )
    split: str = _key(
        "study",
        _one_of("study", "test", "heldout", "train"),
        "split of the reasoner's problems",
        group="what to run",
        flag="--split",
    )
    limit: int | None = _key(
        32,
        _count_or_all,
        "the first N problems of each data set, or all",
        group="what to run",
        flag="--limit",
        metavar="N",
    )
    sample: int | None = _key(
        None,
        _count_or_none,
        "N problems of each data set at random instead, by the seed; the same for all models",
        group="what to run",
        flag="--sample",
        metavar="N",
    )
    columns: tuple[str, ...] = _key(
        (),
        _columns,
        "columns of data sets: question (or prompt, used as it is, or messages, a chat), answer, "
        "id",
        group="what to run",
        flag="--column",
        metavar="question=...,answer=...,id=...",
    )
    scorer: str = _key(
        "auto",
        _scorer,
        "how answers are judged: exact, math, none (lengths alone), a function of yours, or auto: "
        "math, exact for a column `prompt`, none for problems without an answer",
        group="what to run",
        flag="--scorer",
        metavar="NAME|MODULE:FUNCTION",
    )
    prompt_template: str | None = _key(
        None,
        _text_or_none,
        "a text with {problem} or names of columns in it, used for every problem",
        group="what to run",
        flag="--prompt-template",
        metavar="FILE",
    )
    system: str | None = _key(
        None,
        _text_or_none,
        "system prompt, for models with a chat template",
        group="what to run",
        flag="--system",
        metavar="TEXT",
    )
    backends: tuple[str, ...] = _key(
        ("full", "h2o", "sink", "quest", "infllm"),
        _some_names,
        "attention backends; full attention always runs, the others are measured against it; a "
        "budget of its own in brackets: oracle(budget=16)",
        group="attention",
        flag="--backend",
        metavar="full,h2o,...",
    )
    budgets: tuple[int, ...] = _key(
        (128, 256, 512, 1024),
        _counts,
        "tokens one decode query may attend to",
        group="attention",
        flag="--budget",
        metavar="32,64,...",
    )
    null: str = _key(
        "auto",
        _one_of("auto", "seed", "dither", "none"),
        "full attention beside itself, which every sentence is held against: seed, drawn again "
        "with another seed (needs a temperature above 0); dither, with a little noise; auto: seed "
        "when sampling, dither in half precision, else none",
        group="attention",
        flag="--null",
    )
    backend_params: Mapping[str, dict[str, Any]] = _key(
        {}, _tables, "parameters of a backend, as in backend_params.quest.page", group="attention"
    )
    penalties: tuple[str, ...] = _key(
        ("none",),
        _names_or_just_none,
        "penalties on the logits, one at a time; none always runs, the others are measured "
        "against it",
        group="sampling",
        flag="--penalty",
        metavar="none,lz,...",
    )
    penalty_params: Mapping[str, dict[str, Any]] = _key(
        {}, _tables, "parameters of a penalty, as in penalty_params.lz.alpha", group="sampling"
    )
    detectors: tuple[str, ...] = _key(
        ("guardian",),
        _names_or_none,
        "early-stop detectors, or none; each is also compared with no detector; what follows a "
        "verdict after a colon: guardian:answer, guardian:regenerate, guardian:densify; parameters "
        "of its own in brackets: guardian(f=250)",
        group="stopping",
        flag="--detector",
        metavar="NAME[:ACTION]|FILE",
    )
    detector_params: Mapping[str, dict[str, Any]] = _key(
        {}, _tables, "parameters of a detector, as in detector_params.guardian.f", group="stopping"
    )
    action_params: Mapping[str, dict[str, Any]] = _key(
        {}, _tables, "parameters of an action, as in action_params.answer.cue", group="stopping"
    )
    cap: str = _key(
        "2x-full",
        _cap,
        "most tokens of a sparse run: 2x-full, 4x-full (read at 2 as well), or a number for all",
        group="stopping",
        flag="--cap",
    )
    max_new_tokens: int = _key(
        4096,
        _count,
        "most tokens of a full-attention run; never more than the model's positions leave",
        group="stopping",
        flag="--max-new-tokens",
        metavar="N",
    )
    beyond_positions: bool = _key(
        False,
        _yes_or_no,
        "decode beyond the positions that the model's config names",
        group="stopping",
        flag="--beyond-positions",
    )
    temperature: float = _key(
        0.0, _temperature, "0 is greedy", group="sampling", flag="--temperature"
    )
    top_k: int | None = _key(
        None, _count_or_none, "sample from the k likeliest tokens", group="sampling", flag="--top-k"
    )
    top_p: float = _key(
        1.0,
        _share,
        "sample from the likeliest tokens of this total probability",
        group="sampling",
        flag="--top-p",
    )
    samples_per_problem: int = _key(
        1,
        _count,
        "outputs drawn for each problem (needs a temperature above 0)",
        group="sampling",
        flag="--samples-per-problem",
        metavar="N",
    )
    seed: int = _key(
        0, _seed, "of sampling and of the bootstrap", group="sampling", flag="--seed", metavar="N"
    )
    dtype: str = _key(
        "float32", _one_of(*DTYPES), ", ".join(DTYPES), group="machine", flag="--dtype"
    )
    device: str = _key(
        "auto",
        _text,
        "auto takes a GPU where there is one; cpu, cuda, cuda:1",
        group="machine",
        flag="--device",
    )
    device_map: str | None = _key(
        None,
        _text_or_none,
        "as transformers takes it, such as auto: weights go straight to the device (needs "
        "accelerate); the model has to end up on one",
        group="machine",
        flag="--device-map",
        metavar="auto|...",
    )
    engine: str = _key(
        "auto",
        _one_of("auto", *ENGINES),
        f"what decode queries read keys and values with: {', '.join(ENGINES)}; auto takes the "
        "fastest that works here",
        group="machine",
        flag="--engine",
    )
    batch_size: int = _key(
        32, _count, "rows decoded together", group="machine", flag="--batch-size", metavar="N"
    )
    threads: int | None = _key(
        None,
        _threads_or_none,
        "CPU threads of each worker; all cores, shared out, unless OMP_NUM_THREADS says otherwise",
        group="machine",
        flag="--threads",
        metavar="N",
    )
    workers: int = _key(
        1,
        _threads,
        "processes that decode at the same time, each with a model of its own",
        group="machine",
        flag="--workers",
        metavar="N",
    )
    executor: str = _key(
        "local",
        _one_of(*EXECUTORS),
        "where workers are: local, on this machine; ray, on a Ray cluster",
        group="machine",
        flag="--executor",
    )
    address: str | None = _key(
        None,
        _text_or_none,
        "Ray cluster: auto for the one that runs here; none starts one of this machine alone",
        group="machine",
        flag="--address",
        metavar="auto|HOST:PORT",
    )
    gpus_per_worker: float | None = _key(
        None,
        _gpus_or_auto,
        "GPUs that Ray gives each worker; auto: 1 where the cluster has any",
        group="machine",
        flag="--gpus-per-worker",
        metavar="N",
    )
    check_every: int = _key(
        50,
        _count,
        "tokens between two recorded points of cost and compressed size",
        group="machine",
        flag="--check-every",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.samples_per_problem > 1 and self.temperature == 0.0:
            raise InvalidValue(
                "samples_per_problem",
                self.samples_per_problem,
                "1 at temperature 0, where every sample would be the same",
            )
        if self.null == "seed" and self.temperature == 0.0:
            raise InvalidValue("null", "seed", "dither at temperature 0, where no seed is used")
        if self.device_map is not None and self.device != "auto":
            raise InvalidValue("device", self.device, "--device or --device-map, not both")

    #: Whether somebody typed it, rather than a store having it.
    typed: ClassVar[bool] = True

    def following(self) -> AbstractContextManager[None]:
        """Names of classes are looked up in it: those that are typed may be import paths."""
        return contextlib.nullcontext()

    def follows(self, path: str) -> bool:  # noqa: ARG002 - one that somebody typed says no to none
        """Whether what an import path names may be imported."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """All keys with their resolved values, ready for JSON."""
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(Config))
        found = {key: list(value) if isinstance(value, tuple) else value for key, value in values}
        return copy.deepcopy(found)

    def decode_options(self) -> dict[str, Any]:
        """What every decode of this configuration is told, under the names `lil.decode` has."""
        names = (
            *("engine", "batch_size", "temperature", "top_k", "top_p", "seed", "check_every"),
            "beyond_positions",
        )
        return {name: getattr(self, name) for name in names}

    @property
    def cap_factor(self) -> int | None:
        """Times full attention's length that a sparse run may have; None for a number of tokens."""
        match = _CAP.fullmatch(self.cap)
        assert match is not None  # checked when the value came in
        return int(match["times"]) if match["times"] else None

    @property
    def factors(self) -> tuple[int, ...]:
        """The cap as times full attention's length, and 2, 4, ... below it; none for a number.

        A longer trace holds every shorter one, so results are read at each.
        """
        most = self.cap_factor
        if most is None:
            return ()
        return (*itertools.takewhile(lambda one: one < most, (2 << n for n in range(30))), most)

    @property
    def full_cap(self) -> int:
        """Most tokens of a full-attention run: both sides share a cap that is a number."""
        return self.max_new_tokens if self.cap_factor else min(int(self.cap), self.max_new_tokens)

    def sparse_cap(self, full_tokens: int | None, factor: int | None = None) -> int:
        """Most tokens a sparse run may generate, given what full attention took (None: unknown).

        Where full attention failed on a problem there is no length to double, so its own cap holds.

        Args:
            full_tokens: the longest of full attention's samples of the problem.
            factor: another of `factors` than the largest.
        """
        times = factor or self.cap_factor
        if times is None or full_tokens is None:
            return self.full_cap
        return times * full_tokens


def check(values: Mapping[str, object], source: str) -> dict[str, Any]:
    """Every value checked and brought to its type; a key nobody knows fails with the nearest match.

    Args:
        values: keys of `Config` and their raw values.
        source: where they come from, named in the message.

    Raises:
        InvalidValue: an unknown key or a value out of range.
    """
    known = {f.name: f.metadata["check"] for f in dataclasses.fields(Config)}
    checked = {}
    for key, value in values.items():
        if key not in known:
            allowed = f"a key of a sweep ({', '.join(known)})"
            raise InvalidValue(f"key in {source}", key, allowed, known)
        checked[key] = known[key](key, value)
    return checked


# ---------------------------------------------------------------- presets and overrides


def preset_names() -> tuple[str, ...]:
    """The presets that ship with the package."""
    folder = resources.files("experiments") / "presets"
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if _is_toml(p.name)))


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def preset_text(name: str) -> str:
    """The TOML of a preset, by name or by the path of a file of one's own.

    Raises:
        InvalidValue: no such preset or file.
    """
    if _is_toml(name) or "/" in name:
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue("preset", name, f"a readable TOML file ({error})") from error
    if name not in preset_names():
        allowed = f"one of {', '.join(preset_names())}, or a TOML file"
        raise InvalidValue("preset", name, allowed, preset_names())
    return (resources.files("experiments") / "presets" / f"{name}.toml").read_text("utf-8")


def load(preset: str, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration of a preset, changed by what the caller says.

    Tables (`backend_params`, `penalty_params`, `detector_params`) are merged method by method and
    key by key; every other override replaces the preset's value.

    Raises:
        InvalidValue: an unknown preset or key, or a value that cannot be used.
    """
    try:
        raw = tomllib.loads(preset_text(preset))
    except InvalidValue:  # there is none of that name
        raise
    except (ValueError, RecursionError) as error:  # TOML that is none, or a number too long
        raise InvalidValue("preset", preset, f"valid TOML ({error})") from error
    values = check(raw, f"preset {preset}")
    changes = check(overrides or {}, "the command line")
    _choose(values, changes)
    for key, given in changes.items():
        tables = isinstance(given, dict)
        values[key] = merged(key, values.get(key, {}), given) if tables else given
    if "detectors" in values:
        values["detectors"] = _with_opened(values["detectors"])
    return Config(**values)


def _choose(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """The first so many problems or a sample: what is asked for later takes the other's place."""
    for asked in (values, changes):
        if asked.get("sample") and asked.get("limit"):
            raise InvalidValue("sample", asked["sample"], "--sample or --limit, not both")
        if asked.get("sample"):
            asked["limit"] = None
        elif "limit" in asked:
            asked["sample"] = None


def _with_opened(detectors: tuple[str, ...]) -> tuple[str, ...]:
    """Detectors as they were asked for, with name and parameters where a file stands.

    So a sweep's manifest says what was used, wherever the file may be later.

    Raises:
        InvalidValue: a file that cannot be read, or names no detector that there is.
    """
    from lil.detectors import DETECTORS, opened

    specs = ((entry, DETECTORS.spec(entry)) for entry in detectors)
    return tuple(str(opened(spec)) if spec.is_file else entry for entry, spec in specs)


def merged(key: str, table: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """A table of parameters by method with what was said later.

    Args:
        key: of the configuration, such as "detector_params".
        table, later: parameters by the name of what has them.
    """
    both = ((name, table[name], later[name]) for name in later if name in table)
    return {**table, **later, **{name: over(a, b, _twins(key, name)) for name, a, b in both}}


def _twins(key: str, name: str) -> Twins:
    """Parameters that say the same; none of what is not there, which is told where it is made."""
    from attention.methods import METHODS
    from lil.detectors import DETECTORS
    from lil.penalties import PENALTIES

    kinds: dict[str, Registry[Any]] = {
        "backend_params": METHODS,
        "penalty_params": PENALTIES,
        "detector_params": DETECTORS,
    }
    try:
        return kinds[key].find(name).twins if key in kinds else ()
    except InvalidValue:
        return ()


def parse_assignment(text: str) -> dict[str, Any]:
    """`key=value` as typed after --set, nested by dots: `backend_params.quest.page=16`.

    A method may be an import path: `backend_params.package.module:Class.page=16`.

    Raises:
        InvalidValue: no equals sign, or a dotted path through a key that is no table.
    """
    keys, raw = setting(text)
    if len(keys) == 2:
        kinds = ("backend", "penalty", "detector", "action")
        allowed = "KEY=VALUE; a parameter is " + " or ".join(
            f"{kind}_params.{'.'.join(keys)}=" for kind in kinds
        )
        raise InvalidValue("--set", text, allowed)
    if len(keys) not in (1, 3):
        raise InvalidValue("--set", text, "KEY=VALUE, such as backend_params.quest.page=16")
    given = spelling.value(raw)
    return {keys[0]: given} if len(keys) == 1 else {keys[0]: {keys[1]: {keys[2]: given}}}

"""What a sweep is asked to do: plain values, resolved as defaults < preset < command line.

Every key is declared once, with its default, its check, its flag and its help text; the command
line is generated from these declarations, so the two cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue

DTYPES = ("float32", "float64", "bfloat16", "float16")

_CAP = re.compile(r"(?:(?P<times>[1-9]\d*)x-full|(?P<tokens>[1-9]\d*))")


# ---------------------------------------------------------------- checks of one value each


def _names(key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        raise InvalidValue(key, value, "one or more names, separated by commas")
    return tuple(dict.fromkeys(value))


def _some_names(key: str, value: object) -> tuple[str, ...]:
    if not value:
        raise InvalidValue(key, value, "at least one name")
    return _names(key, value)


def _names_or_none(key: str, value: object) -> tuple[str, ...]:
    return () if not value or value == "none" else _names(key, value)


def _names_or_just_none(key: str, value: object) -> tuple[str, ...]:
    return _names(key, value or "none")


def _whole(key: str, value: object, least: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValue(key, value, f"a whole number, at least {least}")
    return value


def _count(key: str, value: object) -> int:
    return _whole(key, value, 1)


def _seed(key: str, value: object) -> int:
    return _whole(key, value, 0)


def _count_or_none(key: str, value: object) -> int | None:
    return None if value in (None, "none", 0, "0") else _whole(key, value, 1)


def _counts(key: str, value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidValue(key, value, "whole numbers of tokens, separated by commas")
    return tuple(dict.fromkeys(_count(key, p.strip() if isinstance(p, str) else p) for p in parts))


def _number(key: str, value: object, low: float, high: float, allowed: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InvalidValue(key, value, allowed)
    return number


def _temperature(key: str, value: object) -> float:
    return _number(key, value, 0.0, 100.0, "a number from 0 (greedy) to 100")


def _share(key: str, value: object) -> float:
    number = _number(key, value, 0.0, 1.0, "a number above 0, at most 1")
    if number == 0.0:
        raise InvalidValue(key, value, "a number above 0, at most 1")
    return number


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue(key, value, "a name")
    return value


def _text_or_none(key: str, value: object) -> str | None:
    return None if value is None or value == "none" else _text(key, value)


def _one_of(*allowed: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in allowed:
            raise InvalidValue(key, value, f"one of {', '.join(allowed)}", allowed)
        return str(value)

    return check


def _cap(key: str, value: object) -> str:
    if isinstance(value, bool) or not _CAP.fullmatch(str(value)):
        raise InvalidValue(
            key,
            value,
            "'2x-full', '4x-full' (so many times what full attention took) or a number of tokens",
            ("2x-full", "4x-full"),
        )
    return str(value)


def _tables(key: str, value: object) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise InvalidValue(key, value, "a table of parameters for each method")
    return {str(name): dict(params) for name, params in value.items()}


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
        "easy, medium, hard (or reasoner for all three), gsm8k, math500, aime, or JSONL files",
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
    limit: int = _key(
        32, _count, "problems of each data set", group="what to run", flag="--limit", metavar="N"
    )
    backends: tuple[str, ...] = _key(
        ("full", "h2o", "sink", "quest", "infllm"),
        _some_names,
        "attention backends; full attention always runs, the others are measured against it",
        group="attention",
        flag="--backends",
        metavar="full,h2o,...",
    )
    budgets: tuple[int, ...] = _key(
        (128, 256, 512, 1024),
        _counts,
        "tokens one decode query may attend to",
        group="attention",
        flag="--budgets",
        metavar="32,64,...",
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
        "verdict after a colon: guardian:answer, guardian:regenerate, guardian:densify",
        group="stopping",
        flag="--detector",
        metavar="NAME[:ACTION]",
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
        "most tokens of a sparse run: 2x-full, 4x-full or a number",
        group="stopping",
        flag="--cap",
    )
    max_new_tokens: int = _key(
        4096,
        _count,
        "most tokens of a full-attention run",
        group="stopping",
        flag="--max-new-tokens",
        metavar="N",
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
    batch_size: int = _key(
        32, _count, "rows decoded together", group="machine", flag="--batch-size", metavar="N"
    )
    threads: int | None = _key(
        None,
        _count_or_none,
        "CPU threads; all cores unless OMP_NUM_THREADS says otherwise",
        group="machine",
        flag="--threads",
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

    def to_dict(self) -> dict[str, Any]:
        """All keys with their resolved values, ready for JSON."""
        values = dataclasses.asdict(self).items()
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values}

    def decode_options(self) -> dict[str, Any]:
        """What every decode of this configuration is told, under the names `lil.decode` has."""
        names = ("batch_size", "temperature", "top_k", "top_p", "seed", "check_every")
        return {name: getattr(self, name) for name in names}

    def sparse_cap(self, full_tokens: int | None) -> int:
        """Most tokens a sparse run may generate, given what full attention took (None: unknown).

        Where full attention failed on a problem there is no length to double, so its own cap holds.
        """
        match = _CAP.fullmatch(self.cap)
        assert match is not None  # checked when the value came in
        if match["tokens"]:
            return int(match["tokens"])
        return self.max_new_tokens if full_tokens is None else int(match["times"]) * full_tokens


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
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue("preset", preset, f"valid TOML ({error})") from error
    values = check(raw, f"preset {preset}")
    for key, value in check(overrides or {}, "the command line").items():
        if isinstance(value, dict):
            merged = dict(values.get(key, {}))
            for method, params in value.items():
                merged[method] = {**merged.get(method, {}), **params}
            value = merged
        values[key] = value
    return Config(**values)


def parse_assignment(text: str) -> dict[str, Any]:
    """`key=value` as typed after --set, nested by dots: `backend_params.quest.page=16`.

    A method may be an import path: `backend_params.package.module:Class.page=16`.

    Raises:
        InvalidValue: no equals sign, or a dotted path through a key that is no table.
    """
    keys, raw = split_setting(text)
    if len(keys) not in (1, 3):
        raise InvalidValue("--set", text, "KEY=VALUE, such as backend_params.quest.page=16")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return {keys[0]: value} if len(keys) == 1 else {keys[0]: {keys[1]: {keys[2]: value}}}


def split_setting(text: str) -> tuple[list[str], str]:
    """The dotted keys of `key.key=value` and the value; no keys where it has another form.

    The dots of an import path `package.module:Class` part nothing.
    """
    path, equals, raw = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        return [], raw
    if (at := next((i for i, key in enumerate(keys) if ":" in key), 0)) > 1:
        keys = [keys[0], ".".join(keys[1 : at + 1]), *keys[at + 1 :]]
    return keys, raw

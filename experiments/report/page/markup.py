"""The conditions of a report, as the page says them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.tables.grid import escape

# Lines of the conditions a reader asks for first; everything else stands folded below them.
_CONFIG = (
    "split", "limit", "offset", "backends", "budgets", "penalties", "cap", "max_new_tokens",
    "temperature", "top_k", "top_p", "samples_per_problem",
)  # fmt: skip
_TOLD = (
    "finding", "figures", "page", "models", "detectors", "packages", "python", "commit", "dirty",
    "device", "device_name", "threads", "dtype", "seed", "arguments", "preset", "started", "ended",
    "status", "config", "runtime",
)  # fmt: skip


def conditions(about: Mapping[str, Any]) -> str:
    """What the numbers were made with; what the manifest does not say is left out."""
    config = about.get("config", {})
    lines = {
        "model": _models(about.get("models", ())),
        "data sets": _listed(config.get("datasets")),
        **{key.replace("_", " "): _listed(config.get(key)) for key in _CONFIG},
        "detectors": "<br>".join(map(_named, about.get("detectors", ()))) or "none",
        "seed": _listed(about.get("seed")),
        "arithmetic": _arithmetic(about),
        "runtime": _listed(about.get("runtime")),
        "device": _device(about),
        "versions": _versions(about),
        "commit": _commit(about),
        "command": _command(about),
        "decoded": _times(about),
    }
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>"
        for name, value in lines.items()
        if value
    )
    rest = {key: value for key, value in config.items() if key not in (*_CONFIG, "datasets")}
    rest |= {key: value for key, value in about.items() if key not in _TOLD}
    more = "".join(
        f"<div><dt>{escape(key)}</dt><dd><code>{_json(value)}</code></dd></div>"
        for key, value in rest.items()
    )
    return (
        f'<dl class="conditions">{shown}</dl>'
        f'<details><summary>Everything else that was set</summary><dl class="conditions">{more}'
        "</dl></details>"
    )


def _arithmetic(about: Mapping[str, Any]) -> str:
    """The dtype, and what linear layers multiply with where that is something else."""
    weights = about.get("config", {}).get("weights", "stored")
    told = _listed(about.get("dtype"))
    return told if weights == "stored" else f"{told}, linear layers in {_listed(weights)}"


def _listed(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(escape, value))
    return escape(value)


def _json(value: object) -> str:
    return escape(json.dumps(value, ensure_ascii=False))


def _models(models: Sequence[Mapping[str, Any]]) -> str:
    return "<br>".join(
        f"{escape(one.get('name'))} <code>{escape(one.get('digest'))}</code>{_counted(one)}"
        for one in models
    )


def _counted(model: Mapping[str, Any]) -> str:
    """Which layers a model's numbers are of, where that is not all."""
    if "key_layers" not in model:
        return ""
    return (
        f", budgets, keys and bytes are of the {escape(model['key_layers'])} of its "
        f"{escape(model['layers'])} layers that hold keys"
    )


def _named(described: Mapping[str, Any]) -> str:
    """A detector with its parameters."""
    inside = ", ".join(
        f"{key} = {value['name'] if isinstance(value, Mapping) and 'name' in value else value}"
        for key, value in described.items()
        if key != "name"
    )
    return escape(f"{described.get('name')} ({inside})" if inside else described.get("name"))


def _device(about: Mapping[str, Any]) -> str:
    engine = about.get("engine")
    parts = [about.get("device"), about.get("device_name"), engine and f"engine {engine}"]
    threads = about.get("threads")
    if threads is not None:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    return ", ".join(escape(part) for part in parts if part is not None)


def _versions(about: Mapping[str, Any]) -> str:
    known = {"Python": about.get("python"), **about.get("packages", {})}
    return ", ".join(escape(f"{name} {version}") for name, version in known.items() if version)


def _commit(about: Mapping[str, Any]) -> str:
    if about.get("commit") is None:
        return ""
    return f"<code>{escape(about['commit'])}</code>" + (
        ", with changes" if about.get("dirty") else ""
    )


def _command(about: Mapping[str, Any]) -> str:
    given = about.get("arguments")
    preset = f" (preset {escape(about['preset'])})" if about.get("preset") else ""
    return f"<code>lil {escape(shlex.join(map(str, given)))}</code>{preset}" if given else ""


def _times(about: Mapping[str, Any]) -> str:
    if not about.get("started"):
        return ""
    ended = f" to {about['ended']}" if about.get("ended") else ""
    status = f", {about['status']}" if about.get("status") else ""
    return escape(f"{about['started']}{ended}{status}")

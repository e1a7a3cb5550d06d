"""The conditions of a report, as the page shows them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from experiments.report.tables.grid import escape

# Lines of the conditions a reader asks for first; everything else stands folded below them.
_CONFIG = (
    "split", "limit", "offset", "backends", "budgets", "penalties", "cap", "max_new_tokens",
    "temperature", "top_k", "top_p", "samples_per_problem",
)  # fmt: skip
_SHOWN = (
    "headline", "notices", "figures", "page", "models", "detectors", "packages", "python", "commit",
    "dirty", "device", "device_name", "threads", "dtype", "seed", "arguments", "preset", "started",
    "ended", "status", "config", "runtime",
)  # fmt: skip


def conditions(about: Mapping[str, Any]) -> str:
    """What the numbers were made with; what the manifest does not say is left out."""
    config = about.get("config", {})
    packages = {"Python": about.get("python"), **about.get("packages", {})}
    times = [about.get("started"), about.get("ended")]
    arguments = about.get("arguments")
    lines = {
        "model": [_model(model) for model in about.get("models", ())],
        "data sets": config.get("datasets"),
        **{key.replace("_", " "): config.get(key) for key in _CONFIG},
        "detectors": [_detector(entry) for entry in about.get("detectors", ())] or "none",
        "seed": about.get("seed"),
        "arithmetic": [about.get("dtype"), *_weights(config.get("weights", "stored"))],
        "runtime": about.get("runtime"),
        "device": _device(about),
        "versions": [f"{name} {version}" for name, version in packages.items() if version],
        "commit": [about.get("commit"), "with changes" if about.get("dirty") else None],
        "command": shlex.join(["lil", *map(str, arguments)]) if arguments else None,
        "preset": about.get("preset"),
        "decoded": [" to ".join(filter(None, times)), about.get("status")],
    }
    rest = {key: value for key, value in config.items() if key not in (*_CONFIG, "datasets")}
    rest |= {key: value for key, value in about.items() if key not in _SHOWN}
    more = {key: json.dumps(value, ensure_ascii=False) for key, value in rest.items()}
    return (
        f"{_list(lines)}<details><summary>Everything else that was set</summary>{_list(more)}"
        "</details>"
    )


def _list(lines: Mapping[str, object]) -> str:
    texts = {name: _joined(value) for name, value in lines.items()}
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text in texts.items()
        if text
    )
    return f'<dl class="conditions">{shown}</dl>'


def _joined(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value if part not in (None, ""))
    return "" if value is None else str(value)


def _model(model: Mapping[str, Any]) -> str:
    text = f"{model.get('name')} {model.get('digest')}"
    if "key_layers" not in model:
        return text
    return (
        f"{text}, budgets, keys and bytes are of the {model['key_layers']} of its "
        f"{model['layers']} layers that hold keys"
    )


def _detector(entry: Mapping[str, Any]) -> str:
    """A detector with its parameters."""
    inside = ", ".join(
        f"{key} = {value['name'] if isinstance(value, Mapping) and 'name' in value else value}"
        for key, value in entry.items()
        if key != "name"
    )
    return f"{entry.get('name')} ({inside})" if inside else str(entry.get("name"))


def _weights(weights: str) -> list[str]:
    return [] if weights == "stored" else [f"linear layers in {weights}"]


def _device(about: Mapping[str, Any]) -> list[str | None]:
    engine, threads = about.get("engine"), about.get("threads")
    return [
        about.get("device"),
        about.get("device_name"),
        f"engine {engine}" if engine else None,
        None if threads is None else f"{threads} thread{'' if threads == 1 else 's'}",
    ]

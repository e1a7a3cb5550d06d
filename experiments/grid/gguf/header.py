"""The header of a GGUF file: its values, and its tensors' names and shapes.

Every count and length is compared with the bytes that are left in the file before anything is read
by it. The `gguf` package does not do that: a count of 2**60 keeps it busy for ever. The reader of
transformers passes over what it does not know, so that a file with a stretch of positions, a window
or heads of another size would silently become another model: such a file is refused by name.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

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

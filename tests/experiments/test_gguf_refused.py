"""GGUF files that cannot be converted: one message with the reason, nothing written."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.harness import Findings, nothing_decoded, tried
from gguf_files import byte_level, made, pieces, write

from experiments.cli import main
from experiments.grid.gguf.header import Unconvertible, read_header

pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models would be kept."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def _left(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.iterdir()) if kept.exists() else []


def _without(name: str) -> dict[str, Any]:
    return {"change": lambda held: held.pop(name)}


def _with(name: str, *shape: int) -> dict[str, Any]:
    return {"change": lambda held: held.__setitem__(name, np.ones(shape, np.float32))}


def _nan(held: dict[str, Any]) -> None:
    held["blk.1.ffn_up.weight"][3, 4] = np.nan


def _words(**values: Any) -> dict[str, Any]:
    return {"words": values}


def _values(**values: Any) -> dict[str, Any]:
    return {"values": {name.replace("__", "."): value for name, value in values.items()}}


TOKENS = byte_level()["tokens"]

#: Files that say what is not known or does not fit: how one is written, what the message has.
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "a tensor missing": (_without("blk.1.ffn_up.weight"), "'blk.1.ffn_up.weight' is missing"),
    "no embeddings": (_without("token_embd.weight"), "token_embd.weight is missing"),
    "a foreign tensor": (_with("blk.0.ffn_gate_inp.weight", 8, 64), "not known to be of llama"),
    "another shape": (_with("blk.0.attn_k.weight", 64, 64), "[64, 64], not [32, 64]"),
    "a norm of other size": (_with("output_norm.weight", 32), "[32], not [64]"),
    "no finite number": ({"change": _nan}, "'blk.1.ffn_up.weight' has numbers that are not"),
    "factors of nobody": (_with("rope_freqs.weight", 8) | {"values": {}}, ""),
    "a mixture": (_values(expert_count=8), "a mixture of experts"),
    "an unknown value": (_values(logit_scale=0.5), "not known here: llama.logit_scale"),
    "no layers": (_values(block_count=0), "llama.block_count is 0"),
    "a layer too many": (_values(block_count=3), "tensors 'blk.2.attn_k.weight'"),
    "layers without end": (_values(block_count=2**31 - 1), "claims 2,147,483,647 layers"),
    "no size": (_values(embedding_length=None), "llama.embedding_length is missing"),
    "heads that do not go round": (_values(attention__head_count_kv=3), "4 heads of 16 over 3"),
    "half a head turned": (_values(rope__dimension_count=8), "8 of the 16 dimensions"),
    "a norm without an end": (_values(attention__layer_norm_rms_epsilon=float("inf")), "is inf"),
    "no base": (_values(rope__freq_base=float("nan")), "llama.rope.freq_base is nan"),
    "a stretch of others": (_values(rope__scaling__type="su"), "stretched by 'su'"),
    "no factor": (_values(rope__scaling__type="yarn"), "rope.scaling.factor is missing"),
    "both ways": (_values(attention__causal=False), "attention.causal is False"),
    "a text for a number": (_values(context_length="long"), "context_length is long"),
    "another vocabulary": (_words(model="bert"), "of the kind 'bert'"),
    "another cut": (_words(pre="qwen-2"), "cut by 'qwen-2', not known here; qwen2 is near"),
    "fewer tokens": (_words(tokens=TOKENS[:-1], token_type=[1] * (len(TOKENS) - 1)), "265 tokens"),
    "a token twice": (_words(tokens=[*TOKENS[:-1], "h"]), "are there twice"),
    "a token without end": (_words(tokens=[*TOKENS[:-1], "h" * 5000]), "over 1024 characters"),
    "an end elsewhere": (_words(eos_token_id=9999), "eos_token_id is 9999, no token of it"),
    "a merge of no tokens": (_words(merges=["h e", "zz z"]), "merge 'zz z'"),
    "kinds of fewer": (_words(token_type=[1, 1]), "not as many"),
    "numbers for tokens": (_words(tokens=[1, 2, 3]), "tokens are no texts"),
    "a template of numbers": (_words(chat_template=3), "chat template is no text"),
    "a flag that is a number": (_words(add_bos_token=3), "add_bos_token is 3"),
}


def _refuses(path: Path, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model", str(path), "--prompt", "hello"]) == 2
    out, err = capsys.readouterr()
    (line,) = [one for one in err.splitlines() if one.startswith("lil: error")]
    assert line.startswith(f"lil: error: model = {str(path)!r}: expected a GGUF file that can be")
    assert reason in line
    assert not out


@pytest.mark.parametrize("name", FOREIGN)
def test_what_cannot_be_converted_is_refused_by_name(name, tmp_path, kept, capsys, monkeypatch):
    how, reason = FOREIGN[name]
    if name != "no finite number":  # all others are known before anything is written
        monkeypatch.setattr(
            "experiments.grid.gguf.folder.write", lambda *_, **__: pytest.fail("written")
        )
    if name == "factors of nobody":
        how = {
            "change": lambda held: held.__setitem__(
                "rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32)
            )
        }
        reason = "no factors of Llama 3.1"
    write(tmp_path / "a.gguf", "llama", **how)
    _refuses(tmp_path / "a.gguf", reason, capsys)
    assert _left(kept) == []


def test_scores_that_are_no_numbers_are_refused(tmp_path, kept, capsys):
    words = pieces()
    for scores in ([float("nan")] * len(words["tokens"]), [1.0]):
        write(tmp_path / "a.gguf", "gemma3", words={"scores": scores})
        _refuses(tmp_path / "a.gguf", "scores", capsys)
    assert _left(kept) == []


# ---------------------------------------------------------------- files that are not what they say


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _header(tensors: int = 0, values: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


_KEY = _text("a")
_ARRAY = _KEY + struct.pack("<II", 9, 8)
_TENSOR = _text("t") + struct.pack("<I", 1) + struct.pack("<Q", 4)

#: Bytes of a header and what the message has.
BYTES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "does not begin as GGUF files do"),
    "another format": (b"PK\x03\x04" * 50, "does not begin as GGUF files do"),
    "the name alone": (b"GGUF", "claims 1 values at byte 4, beyond the file"),
    "a version of long ago": (_header(version=1), "its version is 1, not 3"),
    "a version to come": (_header(version=4), "its version is 4, not 3"),
    "the other order": (_header(version=3 << 24), "version is 3 in another order of bytes"),
    "values without end": (_header(values=2**63), "claims 9,223,372,036,854,775,808 values"),
    "more values than bytes": (_header(values=60_000), "claims 60,000 values at byte 24"),
    "tensors without end": (_header(tensors=2**40), "values and 1,099,511,627,776 tensors"),
    "more tensors than bytes": (_header(tensors=60_000), "claims 60,000 tensors at byte 24"),
    "a name without end": (_header(0, 1, struct.pack("<Q", 2**62) + b"x" * 20), "bytes of a text"),
    "an array without end": (
        _header(0, 1, _KEY + struct.pack("<IIQ", 9, 0, 2**61) + b"x" * 20),
        "its arrays claim 2,305,843,009,213,693,952 values",
    ),
    "texts without end": (
        _header(0, 1, _ARRAY + struct.pack("<Q", 2**61) + b"x" * 20),
        "its arrays claim 2,305,843,009,213,693,952 values",
    ),
    "more texts than bytes": (
        _header(0, 1, _ARRAY + struct.pack("<Q", 1 << 20) + b"x" * 20),
        "claims 1,048,576 texts of an array",
    ),
    "more numbers than bytes": (
        _header(0, 1, _KEY + struct.pack("<IIQ", 9, 0, 1 << 20) + b"x" * 20),
        "claims 1,048,576 values of an array",
    ),
    "more than any vocabulary": (
        _header(0, 1, _KEY + struct.pack("<IIQ", 9, 0, 5 << 20) + bytes(5 << 20)),
        "its arrays claim 5,242,880 values",
    ),
    "arrays in arrays": (
        _header(0, 1, _KEY + struct.pack("<IIQ", 9, 9, 1) + b"x" * 20),
        "an array of it holds type 9",
    ),
    "a type there is not": (_header(0, 1, _KEY + struct.pack("<I", 77) + b"x" * 9), "type 77"),
    "no UTF-8": (
        _header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IQ", 4, 0)),
        "no UTF-8",
    ),
    "a value twice": (
        _header(0, 2, 2 * (_KEY + struct.pack("<IQ", 10, 1))),
        "its value 'a' is there twice",
    ),
    "dimensions without end": (
        _header(1, 0, _text("t") + struct.pack("<I", 2**31) + b"\0" * 40),
        "claims 2,147,483,648 dimensions",
    ),
    "a tensor elsewhere": (
        _header(1, 0, _TENSOR + struct.pack("<IQ", 0, 2**40) + b"\0" * 40),
        "'t' lies outside the file",
    ),
    "a tensor of nothing": (
        _header(1, 0, _text("t") + struct.pack("<IQIQ", 1, 0, 0, 0) + b"\0" * 40),
        "has the shape [0]",
    ),
    "a tensor without end": (
        _header(1, 0, _text("t") + struct.pack("<IQIQ", 1, 2**62, 0, 0) + b"\0" * 40),
        "has the shape",
    ),
    "a crooked alignment": (
        _header(0, 1, _text("general.alignment") + struct.pack("<II", 4, 3)),
        "its alignment is 3",
    ),
    "no architecture": (_header(0, 1, _KEY + struct.pack("<IQ", 10, 1)), "names no architecture"),
    "another architecture": (
        _header(0, 1, _text("general.architecture") + struct.pack("<I", 8) + _text("qwen2moe")),
        "'qwen2moe', not one of llama, qwen2, qwen3, gemma3, phi3; qwen2 is near",
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_headers_are_held_against_the_bytes_there_are(name, tmp_path, kept, capsys):
    content, reason = BYTES[name]
    (tmp_path / "a.gguf").write_bytes(content)
    _refuses(tmp_path / "a.gguf", reason, capsys)
    assert _left(kept) == []


@pytest.mark.parametrize("name", [one for one in BYTES if "end" in one or "more" in one])
def test_nothing_is_made_room_for_by_the_numbers_of_a_header(name, tmp_path):
    (tmp_path / "a.gguf").write_bytes(BYTES[name][0])
    tracemalloc.start()
    try:
        with (tmp_path / "a.gguf").open("rb") as file, pytest.raises(Unconvertible):
            read_header(file)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(BYTES[name][0]) + 200_000
    finally:
        tracemalloc.stop()


def _end_of_header(path: Path) -> int:
    with path.open("rb") as file:
        return min(entry.at for entry in read_header(file).tensors.values())


def test_a_file_that_is_cut_off_is_refused_wherever_that_is(tmp_path, kept, capsys, monkeypatch):
    write_it = "experiments.grid.gguf.folder.write"
    monkeypatch.setattr(write_it, lambda *_, **__: pytest.fail("written"))
    write(tmp_path / "whole.gguf", "llama", storage="Q8_0")
    content = (tmp_path / "whole.gguf").read_bytes()
    header = _end_of_header(tmp_path / "whole.gguf")
    cuts = {
        30: "beyond the file",
        header // 2: "beyond the file",
        header - 100: "beyond the file",
        header + 100: "lies outside the file",
        len(content) - 33: "lie beyond the file, which seems cut off",
    }
    for length, reason in cuts.items():
        (tmp_path / "a.gguf").write_bytes(content[:length])
        _refuses(tmp_path / "a.gguf", reason, capsys)
        assert _left(kept) == []


def _entry(content: bytes, name: str) -> int:
    """Where a tensor's type and place stand, behind its name and two dimensions."""
    return content.index(_text(name)) + 8 + len(name) + 4 + 16


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (1000, "is stored as type 1000, which cannot be dequantised"),
        (26, "is stored as I32, which cannot be dequantised"),
        (14, "has rows of no whole blocks of Q6_K"),
    ],
)
def test_types_of_storage_that_are_not_known_are_refused(kind, reason, tmp_path, kept, capsys):
    write(tmp_path / "a.gguf", "llama")
    content = bytearray((tmp_path / "a.gguf").read_bytes())
    at = _entry(content, "blk.0.ffn_up.weight")
    content[at : at + 4] = struct.pack("<I", kind)
    (tmp_path / "a.gguf").write_bytes(content)
    _refuses(tmp_path / "a.gguf", f"tensor 'blk.0.ffn_up.weight' {reason}", capsys)
    assert _left(kept) == []


def test_tensors_in_one_place_are_refused(tmp_path, kept, capsys):
    write(tmp_path / "a.gguf", "llama")
    content = bytearray((tmp_path / "a.gguf").read_bytes())
    one, other = (_entry(content, f"blk.{i}.ffn_up.weight") + 4 for i in (0, 1))
    content[one : one + 8] = content[other : other + 8]
    (tmp_path / "a.gguf").write_bytes(content)
    _refuses(tmp_path / "a.gguf", "lie over each other", capsys)
    assert _left(kept) == []


def test_what_is_no_file_is_refused(tmp_path, kept, capsys):
    os.mkfifo(tmp_path / "pipe.gguf")  # nobody writes into it
    _refuses(tmp_path / "pipe.gguf", "it is no file", capsys)
    (tmp_path / "near.gguf").write_bytes(b"")
    assert main(["run", "--model", str(tmp_path / "nea.gguf"), "--prompt", "hello"]) == 2
    err = capsys.readouterr().err
    assert "a GGUF file that exists; did you mean" in err
    assert "near.gguf" in err
    for name in ("\0.gguf", "~nobody-here/a.gguf", "x" * 300 + ".gguf"):
        assert main(["run", "--model", name, "--prompt", "hello"]) == 2
        assert capsys.readouterr().err.count("lil: error") == 1
    assert _left(kept) == []


# ---------------------------------------------------------------- by the thousand

_EXTREMES = (0, 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1, 0xFFFF, 255)


def _damaged(content: bytes, header: int, rng: random.Random) -> bytes:
    """A sound file that is flipped, cut, mixed up or another one altogether."""
    changed = bytearray(content)
    # Numbers lie at both ends of a header; between them are texts of the vocabulary.
    at = rng.choice((rng.randrange(200), rng.randrange(header), header - rng.randrange(1, 1500)))
    how = rng.choice(
        ("bits", "bits", "cut", "number", "number", "lost", "noise", "text", "foreign")
    )
    if how == "bits":
        for _ in range(rng.choice((1, 1, 2, 20))):
            changed[min(len(content) - 1, at + rng.randrange(64))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del changed[rng.choice((at, rng.randrange(len(content)))) :]
    elif how == "number":
        width = rng.choice((4, 8))
        number = rng.choice(_EXTREMES) & (2 ** (8 * width) - 1)
        changed[at : at + width] = number.to_bytes(width, "little")
    elif how == "lost":
        del changed[at : at + rng.choice((1, 4, 8, 100))]
    elif how == "noise":
        changed[at : at + rng.choice((1, 8, 64))] = rng.randbytes(rng.choice((1, 8, 64)))
    elif how == "text":
        names = (b"llama.", b"tokenizer.ggml.", b"blk.", b"weight", b"general.architecture")
        changed = changed.replace(rng.choice(names), rng.choice(names), rng.choice((1, 3, -1)))
    else:
        changed = bytearray(b"GGUF" * rng.randrange(2) + rng.randbytes(rng.randrange(3000)))
    return bytes(changed)


def _fuzzed(folder: Path, kept: Path, numbers: range) -> Findings:
    findings = Findings()
    sound = []
    for kind in ("llama", "gemma3"):
        write(folder / f"{kind}.gguf", kind, storage="Q8_0")
        path = folder / f"{kind}.gguf"
        sound.append((path.read_bytes(), _end_of_header(path)))
    with nothing_decoded():
        for n in numbers:
            rng = random.Random(f"gguf/{n}")
            (folder / "x.gguf").write_bytes(_damaged(*rng.choice(sound), rng))
            before = findings.refused
            tried(findings, folder, ["run", "--model", "x.gguf", "--prompt", "hello"], str(n), True)
            if findings.refused > before and (left := _left(kept)):
                findings.fault(f"left in the cache: {left}", str(n))
            shutil.rmtree(kept, ignore_errors=True)
    return findings


@pytest.mark.parametrize(
    "numbers",
    [range(40), pytest.param(range(40, 1040), marks=pytest.mark.slow)],
    ids=["some", "a thousand"],
)
def test_damaged_files_are_used_whole_or_refused_in_one_message(numbers, tmp_path, kept):
    folder = tmp_path / "work"
    folder.mkdir()
    found = _fuzzed(folder, kept, numbers)
    assert found.faults == {}
    assert found.inputs == len(numbers)
    assert found.refused > 0.6 * len(numbers)  # others change a word or a weight, which nobody sees
    assert found.refused + found.reached == found.inputs


def test_a_template_in_a_file_runs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reach = "{{ cycler.__init__.__globals__['os'].system('touch marker') }}"
    write(tmp_path / "a.gguf", words={"chat_template": reach})
    fixed = ["run", "--model", "a.gguf", "--threads", "1", "--max-new-tokens", "4"]
    assert main([*fixed, "--prompt", "hello"]) == 2
    assert capsys.readouterr().err.count("lil: error") == 1
    assert not Path("marker").exists()


def test_a_zip_archive_under_the_name_is_refused(tmp_path, kept, capsys):
    with zipfile.ZipFile(tmp_path / "a.gguf", "w") as archive:
        archive.writestr("x", "GGUF")
    _refuses(tmp_path / "a.gguf", "does not begin as GGUF files do", capsys)
    assert _left(kept) == []


def test_the_files_that_are_damaged_here_are_sound(tmp_path):
    """The tests themselves: undamaged, these files are converted."""
    from experiments.grid import models

    made_of: Callable[..., Any] = made
    for kind in ("llama", "gemma3"):
        write(tmp_path / f"{kind}.gguf", kind, made_of(kind), storage="Q8_0")
        assert models.find(str(tmp_path / f"{kind}.gguf"))

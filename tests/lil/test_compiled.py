"""Decode steps that are compiled: the same traces, one piece for every method, kept, or named."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_models import PROMPTS, build_model, record, requests_of
from torch import nn

import attention
import lil
from attention.patching import compiled as steps
from lil.decoding.compiling import CompileWarning, pays
from tests.attention.examples import OF_THREE

#: They end at different steps, one when its prompt has been read.
ROWS = requests_of(PROMPTS, max_new_tokens=[42, 7, 1, 30])


def decoded(model: Any, tokenizer: Any, **options: Any) -> list[dict[str, Any]]:
    """Records of rows that are decoded without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        traces = lil.decode(model, tokenizer, ROWS, batch_size=3, **options)
    return [record(trace) for trace in traces]


def test_a_mode_is_one_of_three(qwen, tokenizer):
    with pytest.raises(attention.InvalidValue, match=r"'yes'.*'on', 'auto', 'kept'"):
        lil.decode(qwen, tokenizer, PROMPTS, compile="yes")


@pytest.mark.parametrize("layers", [1, 5, 28])
def test_compiling_pays_where_enough_steps_are_left(layers):
    assert not pays(layers, 1000)
    assert pays(layers, 1e6)
    assert not pays(layers, 1e4, device="cuda")
    assert pays(layers, 1e7, device="cuda")
    assert not pays(layers, 1e9, device="mps")


@pytest.mark.parametrize("mode", ["auto", "kept"])
def test_little_is_decoded_as_it_is(mode, qwen, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    monkeypatch.setattr(steps, "_make", lambda *_: pytest.fail("compiled"))
    assert decoded(qwen, tokenizer, compile=mode) == decoded(qwen, tokenizer)


def _hooked(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    model.model.layers[1].register_forward_hook(lambda *_: None)


def _replaced(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    mlp = model.model.layers[0].mlp
    mlp.forward = mlp.forward


def _no_folder(_: nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("LIL_CACHE", "/dev/null/there")


def _no_compiler(_: nn.Module, patch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any) -> None:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nmore of it")

    patch.setattr(steps, "_make", raises)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_hooked, "model.layers.1 has a hook"),
        (_replaced, "the forward of model.layers.0.mlp was replaced"),
        (_no_folder, "cannot be used"),
        (_no_compiler, "RuntimeError: InvalidCxxCompiler: No working C.. compiler found$"),
    ],
)
def test_what_cannot_be_compiled_runs_and_is_named(harm, reason, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    model = build_model("qwen3")
    expected = decoded(model, tokenizer)
    harm(model, monkeypatch)
    with pytest.warns(CompileWarning, match=reason) as seen:
        traces = lil.decode(model, tokenizer, ROWS, batch_size=3, compile="on")
    assert len(seen) == 1
    assert [record(trace) for trace in traces] == expected


def test_a_step_is_kept_by_all_that_it_depends_on(qwen):
    key = steps.key(qwen)
    assert key == steps.key(build_model("qwen3", seed=12))  # other weights of the same shapes
    assert key != steps.key(qwen, ["model.layers.0"])
    assert key != steps.key(build_model("qwen3", layers=1))
    assert key != steps.key(build_model("qwen3", torch.float32))
    config = build_model("qwen3")
    config.config.rms_norm_eps = 0.5
    assert key != steps.key(config)


@pytest.mark.slow
def test_every_method_decodes_the_same_tokens(qwen, tokenizer, tmp_path, monkeypatch):
    """With one step: none is compiled again for other methods or batches."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    decoded(qwen, tokenizer, compile="on")
    monkeypatch.setattr(steps, "_make", lambda *_: pytest.fail("compiled again"))
    for backend in OF_THREE:
        expected = decoded(qwen, tokenizer, backend=backend)
        assert decoded(qwen, tokenizer, backend=backend, compile="on") == expected


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half"])
def test_half_a_file_is_made_anew(content, qwen, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    (steps.user_cache("steps") / f"{steps.key(qwen)}.pt2").write_bytes(content)
    assert decoded(qwen, tokenizer, compile="kept") == decoded(qwen, tokenizer)

    def making(*_: Any) -> None:
        raise RuntimeError("making it anew")

    monkeypatch.setattr(steps, "_make", making)
    with pytest.warns(CompileWarning, match="making it anew"):
        lil.decode(qwen, tokenizer, PROMPTS, max_new_tokens=3, compile="on")

"""Decode steps that are compiled: the same traces, one piece for every method, kept, or named."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_waits import DETECTORS, near
from tiny_models import SIZES, Endings, asked
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

import attention
import lil
from attention.patching import compiled as steps
from attention.patching import decode_step
from lil.decoding.compiling import CompileWarning, pays
from tests.attention.examples import BACKENDS

PROMPTS = [[5, 6, 7], [9] * 12, [30], [1, 2, 3, 4, 5, 6, 7, 8]]
CAPS = [42, 7, 1, 30]
#: The model's norms are in float32 whatever it is in, and are rounded otherwise where compiled.
ROUNDING = 1e-5


def build(layers: int = 2, seed: int = 11) -> Any:
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_hidden_layers": layers}
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(torch.float64).eval()


@pytest.fixture(scope="module")
def small() -> Any:
    return build()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this module's own, with the small model's step in it."""
    folder = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIL_CACHE", str(folder))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        assert found(build()).seconds > 0
        torch.set_num_threads(threads)
        yield folder


def found(model: Any) -> Any:
    """The model's compiled step, of a block that is closed again."""
    with attention.get("full").on(model) as cache:
        step = steps.compiled(model, cache)
    assert step is not None
    return step


def record(trace: lil.Trace) -> dict[str, Any]:
    """All a trace holds but seconds."""
    whole = trace.to_dict()
    for name in ("prefill_sec", "decode_sec"):
        del whole[name]
    for check in whole["checks"]:
        del check["seconds"]
    return whole


def decoded(
    model: Any, tokenizer: Any, caps: Sequence[int] = CAPS, **options: Any
) -> list[dict[str, Any]]:
    """Records of ragged rows that end apart, without a word about compiling."""
    rows = asked(PROMPTS, max_new_tokens=caps)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        return [record(one) for one in lil.decode(model, tokenizer, rows, batch_size=3, **options)]


# ---------------------------------------------------------------- what needs no compiler


def test_a_mode_is_one_of_three(small, tokenizer):
    with pytest.raises(attention.InvalidValue, match=r"'yes'.*'on', 'auto', 'kept'"):
        lil.decode(small, tokenizer, PROMPTS, compile="yes")


@pytest.mark.parametrize("layers", [1, 5, 28])
def test_compiling_pays_where_enough_steps_are_left(layers):
    assert not pays(layers, 1000)
    assert pays(layers, 1e6)
    assert not pays(layers, 1e9, device="cuda")  # where nothing was measured


def test_steps_are_for_cpus_and_cuda(small, monkeypatch):
    monkeypatch.setattr(type(small), "device", torch.device("meta"))
    with pytest.raises(steps.NotCompiled, match="for CPUs and CUDA devices, not for meta"):
        steps.compiled(small, None)


@pytest.mark.parametrize("mode", ["auto", "kept"])
def test_little_is_decoded_as_it_is(mode, small, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    monkeypatch.setattr(steps, "_make", lambda *_: pytest.fail("compiled"))
    assert decoded(small, tokenizer, compile=mode) == decoded(small, tokenizer)


def _hooked(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    model.model.layers[1].register_forward_hook(lambda *_: None)


def _replaced(model: nn.Module, _: pytest.MonkeyPatch) -> None:
    mlp = model.model.layers[0].mlp
    mlp.forward = mlp.forward


def _no_folder(_: nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("LIL_CACHE", "/dev/null/there")


def _open_folder(_: nn.Module, _patch: pytest.MonkeyPatch) -> None:
    steps.folder().chmod(0o777)


def _foreign_folder(_: nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("os.getuid", lambda: 12345)


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
        (_open_folder, "can be written to by other users"),
        (_foreign_folder, "belongs to another user"),
        (_no_compiler, "RuntimeError: InvalidCxxCompiler: No working C.. compiler found$"),
    ],
)
def test_what_cannot_be_compiled_runs_and_is_named(harm, reason, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    model = build()
    expected = decoded(model, tokenizer)
    harm(model, monkeypatch)
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    with pytest.warns(CompileWarning, match=reason) as seen:
        traces = lil.decode(model, tokenizer, rows, batch_size=3, compile="on")
    assert len(seen) == 1
    assert [record(one) for one in traces] == expected


def test_a_step_is_kept_by_all_that_it_depends_on(small):
    key = steps.key(small)
    assert key == steps.key(build(seed=12))  # other weights of the same shapes
    assert key != steps.key(small, ["model.layers.0"])
    assert key != steps.key(build(layers=1))
    assert key != steps.key(build().float())
    config = build()
    config.config.rms_norm_eps = 0.5
    assert key != steps.key(config)
    torch.set_num_threads(2)
    assert key != steps.key(small)


# ---------------------------------------------------------------- compiled


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_method_decodes_the_same_tokens(backend, small, tokenizer, monkeypatch):
    """With the one step that is kept: none is compiled again for other methods or batches."""
    monkeypatch.setattr(steps, "_make", lambda *_: pytest.fail("compiled again"))
    expected = decoded(small, tokenizer, backend=backend)
    assert decoded(small, tokenizer, backend=backend, compile="on") == expected


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_p": 0.9, "seed": 3},
        {"penalties": [lil.penalties.get("lz")]},
        {
            "detectors": [lil.Budget(20, on_stop="densify")],
            "backend": attention.Quest(budget=8, page=4, dense_layers=0),
        },
        {"detectors": [lil.Guardian(f=22, rate=3.0)]},
    ],
    ids=["sampled", "penalised", "densified", "stopped"],
)
def test_what_else_is_asked_for_stays_the_same(options, small, tokenizer):
    expected = decoded(small, tokenizer, **options)
    assert decoded(small, tokenizer, compile="on", **options) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("mode", ["auto", "kept"])
def test_a_step_that_is_there_is_taken(mode, small, tokenizer, monkeypatch):
    used = []
    run = steps.CompiledStep.run
    monkeypatch.setattr(steps.CompiledStep, "run", lambda *given: used.append(1) or run(*given))
    decoded(small, tokenizer, compile=mode)
    assert len(used) >= max(CAPS) - 1


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_margins_are_those_of_its_scores(small, tokenizer, monkeypatch):
    """No other step is compiled for a detector that reads scores alone."""
    monkeypatch.setattr(steps, "_make", lambda *_: pytest.fail("compiled again"))
    probe = lil.Margin(below=0.9, end=" word7")
    expected = decoded(small, tokenizer, probes=[probe])
    found = decoded(small, tokenizer, probes=[probe], compile="on")
    assert any(one["signals"] for one in expected)
    assert near(found, ROUNDING) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_hidden_states_come_with_the_scores(small, tokenizer, monkeypatch):
    """A step of its own gives them: a chopper stops where it stopped, after as many tokens."""
    made = []
    make = steps._make
    monkeypatch.setattr(steps, "_make", lambda *given: made.append(given[2]) or make(*given))
    chopper = DETECTORS["chopper"]
    for options in ({"detectors": [chopper]}, {"probes": [chopper]}):
        options = {"penalties": [Endings()], **options}
        expected = decoded(small, tokenizer, caps=[63, 45, 1, 30], **options)
        found = decoded(small, tokenizer, caps=[63, 45, 1, 30], compile="on", **options)
        assert near(found, ROUNDING) == expected
        read = [one["finish"] == "chopper" or bool(one["signals"]) for one in expected]
        assert any(read)
    assert made == [("model.layers.0",)]


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_weights_are_the_models_own(tokenizer):
    """Changed in place they are read as they are; another model's are not this one's."""
    other = build(seed=12)
    expected = decoded(other, tokenizer)
    assert decoded(other, tokenizer, compile="on") == expected
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(-1)
    changed = decoded(other, tokenizer)
    assert changed != expected
    assert decoded(other, tokenizer, compile="on") == changed


@pytest.mark.slow
def test_a_step_with_other_scores_is_not_kept(kept, tmp_path, monkeypatch):
    """As one would be that rounds too coarsely or reads weights of another name."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    model, load = build(seed=12), steps._loaded
    other = (kept / "steps" / f"{steps.key(model)}.pt2").read_bytes()
    monkeypatch.setattr(steps, "_make", lambda path, *_: path.write_bytes(other))
    monkeypatch.setattr(steps, "_loaded", lambda path, _, *more: load(path, build(seed=13), *more))
    with (
        pytest.raises(steps.NotCompiled, match="scores differ"),
        attention.get("full").on(model) as cache,
    ):
        steps.compiled(model, cache)
    assert not list(tmp_path.rglob("*.pt2"))


@pytest.mark.parametrize(
    ("rows", "moved", "own", "taken"),
    [
        (8, 0.0, 0.0, True),
        (8, 1e-6, 0.0, True),  # roundings of sums
        (1, 0.01, 0.0, False),
        (3, 0.01, 0.01, True),  # the model's own scores move so where a last bit changes
        (3, 0.03, 0.01, False),
        (5, 0.01, 0.01, False),  # something else is computed in most rows
    ],
)
def test_a_step_may_differ_where_the_model_itself_rounds(
    rows: int, moved: float, own: float, taken: bool, small, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moved(decode_step.DecodeStep):
        """The model's own scores, those of some rows moved."""

        def __init__(self) -> None:
            self.seconds, self.states = 0.0, ()

        def run(self, ids, positions):
            del positions
            scores = wanted[: len(ids)].clone()  # the first rows are the same in fewer
            scores[:rows] += moved * scores.abs().amax(-1, keepdim=True)[:rows]
            return (scores,)

    def nudged(*_args: object) -> torch.Tensor:
        return wanted + own * wanted.abs().amax(-1, keepdim=True) * (torch.arange(8) == 0)[:, None]

    with attention.get("full").on(small) as cache:
        ids = (torch.arange(1, 33).view(8, 4) * 7) % small.config.vocab_size
        wanted, _ = decode_step._eager(small, cache, ids)
        monkeypatch.setattr(decode_step, "_nudged", nudged)
        if taken:
            decode_step.probe(Moved(), small, cache)
        else:
            with pytest.raises(decode_step.NotCompiled, match="its scores differ"):
                decode_step.probe(Moved(), small, cache)


@pytest.mark.parametrize(
    ("said", "kind", "args"),
    [
        ("KeyboardInterrupt: <EMPTY MESSAGE>", KeyboardInterrupt, ()),
        ("SystemExit: 143\n\nAt:\n  /x.py(67): f", SystemExit, (143,)),
        ("shapes: KeyboardInterrupt: ", RuntimeError, ("shapes: KeyboardInterrupt: ",)),
    ],
)
def test_a_signal_inside_a_step_ends_the_command(
    said: str, kind: type[BaseException], args: tuple[object, ...], small
) -> None:
    class Interrupted(decode_step.DecodeStep):
        """As C++ tells what Python raised in an operator of it."""

        def run(self, ids, positions):
            del ids, positions
            raise RuntimeError(said)

    with attention.get("full").on(small) as cache, torch.no_grad():
        new = cache.new(prompts=[3])
        small(torch.ones(1, 3, dtype=torch.int64), past_key_values=new)
        with pytest.raises(kind) as raised:
            Interrupted()(new, torch.ones(1, 1, dtype=torch.int64), new.seen[:, None])
        assert type(raised.value) is kind
        assert raised.value.args == args


def test_the_last_bits_of_embeddings_are_moved_and_no_more(small) -> None:
    with attention.get("full").on(small) as cache:
        ids = (torch.arange(1, 33).view(8, 4) * 7) % small.config.vocab_size
        wanted, _ = decode_step._eager(small, cache, ids)
        apart = decode_step._apart(decode_step._nudged(small, cache, ids, 0), wanted)
        assert 0 < float(apart.max()) < 1e-4
        assert not small.get_input_embeddings()._forward_hooks


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_an_error_in_attention_is_raised_as_it_is(small):
    step = found(small)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attention.get("full").on(small) as cache:
        small(ids, past_key_values=cache)
        used = cache.clone()
        with pytest.raises(attention.InvalidValue, match=r"position_ids.*row 0"):
            step(cache.clone(), ids[:, :1], torch.tensor([[4]]))
        with pytest.raises(attention.InvalidValue, match="2 rows"):
            step(used, ids[:, :2].T, torch.tensor([[3], [3]]))
    with pytest.raises(attention.InvalidValue, match="closed"):
        step(cache, ids[:, :1], torch.tensor([[3]]))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half"])
def test_half_a_file_is_made_anew(content, small, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    (steps.folder() / f"{steps.key(small)}.pt2").write_bytes(content)
    assert decoded(small, tokenizer, compile="kept") == decoded(small, tokenizer)

    def making(*_: Any) -> None:
        raise RuntimeError("making it anew")

    monkeypatch.setattr(steps, "_make", making)
    with pytest.warns(CompileWarning, match="making it anew"):
        lil.decode(small, tokenizer, PROMPTS, max_new_tokens=3, compile="on")


def test_what_a_killed_process_left_is_cleared(small, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    left = steps.folder() / f"{steps.key(small)}.making"
    (left / "more").mkdir(parents=True)
    monkeypatch.setattr(steps, "_make", lambda path, *_: next(iter(path.parent.iterdir())))
    with pytest.warns(CompileWarning, match="StopIteration"):
        lil.decode(small, tokenizer, PROMPTS, max_new_tokens=3, compile="on")
    assert not left.exists()


@pytest.mark.slow
def test_another_process_compiles_nothing(kept):
    code = """
import sys
sys.path[:0] = ["tests/lil", "."]
import torch
torch.set_num_threads(1)
from test_compiled import build, found
from attention.patching import compiled as steps
from attention.patching import decode_step
steps._make = None
print(found(build()).seconds)
"""
    before = {path.name for path in (kept / "steps").iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "LIL_CACHE": str(kept)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["0.0"], done.stderr
    assert {path.name for path in (kept / "steps").iterdir()} == before
    assert {name.partition(".")[2] for name in before} <= {"pt2", "pt2.lock", "safetensors"}

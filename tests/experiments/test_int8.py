"""Linear layers in whole numbers: against plain arithmetic, and as part of what a run is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attention
import lil
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.grid import int8, models
from experiments.grid.int8 import Int8Linear, in_int8
from experiments.store import manifest
from experiments.store.sweeps import Sweep, latest_compatible
from experiments.sweep.decoder import compile_step


def _oracle(weight: np.ndarray, bias: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """Rounded to whole numbers of a 127th of each row's largest, multiplied, and scaled back."""

    def whole(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = np.abs(rows).max(axis=1, keepdims=True) / 127
        scale[scale == 0] = 1.0
        return np.floor(rows / scale + 0.5), scale

    (q, scales), (p, steps) = whole(weight), whole(x)
    products = (p @ q.T) * steps * scales.T
    return products if bias is None else products + bias


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 7, 3), (5, 64, 130), (600, 33, 17)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_whole_numbers(
    rows: int, inputs: int, outputs: int, bias: bool
) -> None:
    torch.manual_seed(rows)
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    # Numbers away from halves, which single and double precision may round to different sides.
    x = torch.randn(rows, inputs)
    got = Int8Linear(linear)(x[None])[0].double().numpy()
    more = None if linear.bias is None else linear.bias.detach().double().numpy()
    wanted = _oracle(linear.weight.detach().double().numpy(), more, x.double().numpy())
    # One input in some thousands lies at a half: a 127th of the row's largest, times a weight.
    off = np.abs(got - wanted).max(axis=1) / np.abs(wanted).max()
    assert np.quantile(off, 0.5) < 1e-5
    assert off.max() < 0.02
    exact = x.double().numpy() @ linear.weight.detach().double().numpy().T
    exact = exact if more is None else exact + more
    assert np.abs(got - exact).mean() < 0.02 * np.abs(exact).max()


def test_a_row_has_the_same_outputs_in_any_batch() -> None:
    layer = Int8Linear(torch.nn.Linear(48, 96))
    x = torch.randn(300, 48)
    together = layer(x)
    for row in (0, 17, 255, 256, 299):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


def test_rows_of_zeros_and_numbers_that_are_not_finite() -> None:
    layer = Int8Linear(torch.nn.Linear(8, 4))
    x = torch.randn(4, 8)
    x[0], x[1, 2], x[2, 3] = 0.0, torch.nan, torch.inf
    outputs = layer(x)
    assert torch.allclose(outputs[0], layer.bias)
    assert not outputs[1:3].isfinite().any()
    assert outputs[3].isfinite().all()


@pytest.mark.parametrize("rows", [1, 300])
def test_the_largest_numbers_of_a_sign_do_not_saturate(rows: int) -> None:
    """Pairs of their products are above 32767, where AVX2's kernels cut sums off."""
    linear = torch.nn.Linear(96, 40, bias=False)
    linear.weight.data.fill_(1.0)
    for sign in (1.0, -1.0):
        got = Int8Linear(linear)(torch.full((rows, 96), sign))
        assert torch.allclose(got, torch.full((rows, 40), 96 * sign), rtol=1e-3)


def test_kernels_that_multiply_wrongly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = int8._product
    monkeypatch.setattr(int8, "_product", lambda *args: right(*args) * 0.9)
    with pytest.raises(InvalidValue, match="weights = 'int8'"):
        Int8Linear(torch.nn.Linear(64, 32))


def test_a_model_decodes_and_every_linear_layer_of_it_is_whole(tiny_model: Path) -> None:
    source = models.find(str(tiny_model), weights="int8")
    plain = models.load(models.find(str(tiny_model)), "float64", "cpu")
    whole = models.load(source, "float64", "cpu")
    assert source.digest == f"{models.find(str(tiny_model)).digest}+int8"
    kinds = [type(module) for module in whole.model.modules()]
    count = [type(module) for module in plain.model.modules()].count(torch.nn.Linear)
    assert (kinds.count(Int8Linear), kinds.count(torch.nn.Linear)) == (count, 0)
    ids = torch.arange(1, 40)[None]
    with torch.inference_mode():
        a, b = plain.model(ids).logits, whole.model(ids).logits
    assert 0 < float((a - b).norm() / a.norm()) < 0.05
    prompts = [[1, 2, 3, 4, 5], [7, 8], [9] * 20]
    for backend in (attention.get("full"), attention.get("h2o", budget=8)):
        options = {"backend": backend, "max_new_tokens": 24, "token_bytes": whole.token_bytes}
        together = lil.decode(whole.model, whole.tokenizer, prompts, batch_size=3, **options)
        alone = lil.decode(whole.model, whole.tokenizer, prompts, batch_size=1, **options)
        assert [x.new_ids for x in together] == [x.new_ids for x in alone]


@pytest.mark.slow
def test_a_compiled_step_has_the_same_tokens(tiny_model: Path) -> None:
    source = models.find(str(tiny_model), weights="int8")
    made, other = (models.load(source, "float64", "cpu") for _ in range(2))
    assert compile_step(made, attention.get("full"), "on", 0).startswith("compiled")
    assert compile_step(other, attention.get("full"), "on", 0) == "kept from earlier"
    prompts = [[1, 2, 3, 4, 5], [7, 8], [9] * 20]
    for method in (attention.get("full"), attention.get("h2o", budget=16)):
        options = {"backend": method, "max_new_tokens": 24, "token_bytes": made.token_bytes}
        decoded = [
            lil.decode(loaded.model, loaded.tokenizer, prompts, compile=how, **options)
            for loaded, how in ((made, "kept"), (other, "kept"), (made, "off"))
        ]
        texts = [[list(trace.new_ids) for trace in traces] for traces in decoded]
        assert texts[0] == texts[1] == texts[2]
    # The step of whole numbers is not the other weights' step.
    plain = models.load(models.find(str(tiny_model)), "float64", "cpu")
    assert compile_step(plain, attention.get("full"), "auto", 0) != "kept from earlier"


def test_what_cannot_be_whole_is_refused() -> None:
    with pytest.raises(InvalidValue, match="whole numbers are for CPUs"):
        in_int8(torch.nn.Linear(2, 2), "cuda:0")
    with pytest.raises(InvalidValue, match="has no linear layer"):
        in_int8(torch.nn.Embedding(2, 2), "cpu")


def test_sweeps_of_both_are_two_models_to_a_store(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        *("sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"),
        *("--limit", "2", "--max-new-tokens", "8", "--backend", "full", "--detector", "none"),
        *("--budget", "64", "--null", "none", "--no-figures", "--no-page", "--json"),
        *("--out", str(tmp_path / "out")),
    ]
    documents = {}
    for weights in ("stored", "int8"):
        assert main([*common, "--weights", weights]) == 0
        documents[weights] = json.loads(capsys.readouterr().out)
    counts = [documents[w]["manifest"]["counts"]["decoded"] for w in ("stored", "int8")]
    assert counts[0] == counts[1] > 0
    config = documents["int8"]["manifest"]["config"]
    assert config["weights"] == "int8"
    # What the two show together would compare a model with another.
    newest, oldest = (Sweep.read(path) for path in reversed(manifest.paths(tmp_path / "out")))
    why = latest_compatible([newest, oldest]).incompatible[oldest.id]
    assert why == f"weights {oldest.config.weights}, not {newest.config.weights}"

"""The linear layer: its numbers, its file, its training, and how it is measured."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from attention.errors import InvalidValue
from lil.chopper.classifier import Classifier
from lil.chopper.training import Training, auroc, evaluate


def small(**changes: object) -> Classifier:
    values: dict = {
        "weight": torch.tensor([1.0, -2.0, 0.5]),
        "bias": 0.25,
        "block": -2,
        "model": "tiny",
        "labeller": {"run": 10, "embedder": {"name": "text"}},
        "training": {"epochs": 50, "chunks": 12},
    }
    return Classifier(**(values | changes))


def test_its_numbers_are_those_of_a_linear_layer() -> None:
    states = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    assert small().logits(states).tolist() == [1.0 - 4.0 + 2.0 + 0.25, 0.25]
    assert small().probability(states[1]) == pytest.approx(1 / (1 + math.exp(-0.25)))
    half = small().probability(states[0].to(torch.bfloat16))
    assert half == small().probability(states[0])  # these numbers are exact in bfloat16


def test_what_it_refuses_to_read() -> None:
    with pytest.raises(InvalidValue, match="trained on tiny"):
        small().probability(torch.zeros(4))
    with pytest.raises(FloatingPointError):
        small().probability(torch.tensor([0.0, float("nan"), 0.0]))


def test_a_file_gives_it_back_and_is_the_same_each_time(tmp_path: Path) -> None:
    saved = small().save(tmp_path / "a.safetensors")
    loaded = Classifier.load(tmp_path / "a.safetensors")
    assert loaded == saved == small()
    assert hash(loaded) == hash(small())
    for field in ("block", "model", "labeller", "training", "bias"):
        assert getattr(loaded, field) == getattr(small(), field)
    assert torch.equal(loaded.weight, small().weight)
    assert loaded.source == saved.source == str(tmp_path / "a.safetensors")
    loaded.save(tmp_path / "b.safetensors")
    files = [(tmp_path / name).read_bytes() for name in ("a.safetensors", "b.safetensors")]
    assert files[0] == files[1]


def test_the_digest_tells_what_it_computes() -> None:
    others = [
        small(weight=torch.tensor([1.0, -2.0, 0.5000001])),
        small(bias=0.5),
        small(block=-1),
    ]
    assert len({small().digest, *(other.digest for other in others)}) == 4
    assert small(model="another", training={}).digest == small().digest
    assert small() != "something else"


def test_package_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ships_a_chopper"
    package.mkdir()
    (package / "__init__.py").write_text("")
    small().save(package / "w.safetensors")
    monkeypatch.syspath_prepend(tmp_path)
    assert Classifier.load("ships_a_chopper:w.safetensors") == small()
    for wrong in ("ships_a_chopper:v.safetensors", "no_such_package:w.safetensors"):
        with pytest.raises(InvalidValue, match="weights = "):
            Classifier.load(wrong)


def _rewrite(path: Path, **changes: object) -> None:
    """The file again with other facts."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in ("weight", "bias")}
        facts = json.loads(file.metadata()["chopper"]) | changes
    save_file(tensors, path, metadata={"chopper": json.dumps(facts)})


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(InvalidValue, match="that exists"):
        Classifier.load(path)
    small().save(path)
    with pytest.raises(InvalidValue, match="did you mean"):
        Classifier.load(tmp_path / "v.safetensors")

    changes: list[tuple[dict[str, object], str]] = [
        ({"format": "lil-chopper-9"}, "format 'lil-chopper-9'"),
        ({"hidden_size": 4}, "hidden size of 4"),
        ({"block": 2}, "below 0"),
        ({"block": "last"}, "block is 'last'"),
        ({"model": None}, "model is None"),
    ]
    for change, message in changes:
        small().save(path)
        _rewrite(path, **change)
        with pytest.raises(InvalidValue, match=message):
            Classifier.load(path)

    whole = small().save(path) and path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(InvalidValue, match="readable safetensors"):
        Classifier.load(path)
    save_file({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, path)
    with pytest.raises(InvalidValue, match="no 'chopper'"):
        Classifier.load(path)
    save_file({"weight": torch.zeros(1, 3)}, path, metadata={"chopper": "{}"})
    with pytest.raises(InvalidValue, match="no 'format'"):
        Classifier.load(path)
    torch.save({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, path)  # a pickle
    with pytest.raises(InvalidValue, match="readable safetensors"):
        Classifier.load(path)
    with pytest.raises(InvalidValue, match="can be written"):
        small().save(tmp_path / "no" / "such" / "folder")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", torch.zeros(2, 2)),
        ("weight", torch.zeros(0)),
        ("weight", torch.tensor([float("nan")])),
        ("bias", float("inf")),
        ("block", 0),
    ],
)
def test_bad_weights(field: str, value: object) -> None:
    with pytest.raises(InvalidValue):
        small(**{field: value})


# ---------------------------------------------------------------- training


def clouds(
    count: int, seed: int = 0, share: float = 0.2, apart: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two clouds of states, apart along the first axis; a share of them is salad."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.randperm(count, generator=draw) < share * count).long()
    states = torch.randn(count, 6, generator=draw)
    states[:, 0] += apart * (2.0 * labels - 1.0)
    return states, labels, torch.full((count,), 30)


def by_torch(states: torch.Tensor, labels: torch.Tensor) -> torch.nn.Linear:
    """torch's own layer and loss on everything at once, to the optimum."""
    layer = torch.nn.Linear(states.shape[1], 1).double()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, tolerance_grad=1e-10)
    loss = torch.nn.BCEWithLogitsLoss()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(layer(states.double())[:, 0], labels.double())
        value.backward()
        return value

    optimizer.step(closure)
    return layer


def test_it_learns_what_logistic_regression_learns() -> None:
    states, labels, tokens = clouds(600, share=0.5, apart=0.7)  # nothing to draw from
    fitted = Training(lr=0.02, epochs=1200).fit(states, labels, tokens)
    layer = by_torch(states, labels)
    assert torch.allclose(fitted.weight.double(), layer.weight.detach()[0], atol=1e-3)
    assert fitted.bias == pytest.approx(layer.bias.item(), abs=1e-3)


def test_it_tells_fresh_chunks_apart_though_classes_were_not_even() -> None:
    fitted = Training(lr=0.05, epochs=200, batch_size=64).fit(*clouds(400))
    classifier = Classifier(fitted.weight, fitted.bias, -2, "clouds")
    states, labels, _ = clouds(1000, seed=1)
    found = evaluate(torch.sigmoid(classifier.logits(states)).tolist(), labels.tolist())
    assert found["accuracy"] > 0.98
    assert found["auroc"] > 0.995


def test_the_same_seed_gives_the_same_weights() -> None:
    data = clouds(300)
    first, again = Training(epochs=3).fit(*data), Training(epochs=3).fit(*data)
    torch.manual_seed(99)  # the global stream is not touched
    before = torch.random.get_rng_state()
    third = Training(epochs=3).fit(*data)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.weight, third.weight)
    assert first.bias == again.bias == third.bias
    assert first.facts == again.facts
    assert not torch.equal(first.weight, Training(epochs=3, seed=42).fit(*data).weight)


def test_the_recipe_is_the_papers() -> None:
    assert dataclasses.asdict(Training()) == {
        "lr": 1e-2,
        "batch_size": 8192,
        "epochs": 50,
        "seed": 41,
        "short": 10,
    }
    states, labels, tokens = clouds(300)
    fitted = Training().fit(states, labels, tokens)
    # One step an epoch, and where the direction is plain Adam moves by its rate each time.
    moved = fitted.weight[0] - Training(epochs=1).fit(states, labels, tokens).weight[0]
    assert 0.4 < float(moved) < 0.5
    assert fitted.facts["chunks_of_each_class"] == int(labels.sum())


def test_classes_are_balanced_and_short_chunks_left_out() -> None:
    states, labels, tokens = clouds(400)
    base = Training(epochs=5)
    # Without its sound majority's surplus a constant input says nothing of the class.
    flat = base.fit(torch.ones_like(states), labels, tokens)
    logit = float(torch.ones(6) @ flat.weight + flat.bias)
    assert abs(logit) < 1.0
    one = Training(epochs=400, lr=0.05).fit(torch.ones_like(states), labels, tokens)
    assert abs(float(torch.ones(6) @ one.weight + one.bias)) < 1e-3
    # Chunks of ten tokens are left out, of eleven are in.
    lying = torch.cat([states, -100 * states]), labels.repeat(2)
    for length, same in ((10, True), (11, False)):
        lengths = torch.cat([tokens, torch.full_like(tokens, length)])
        fitted = base.fit(*lying, lengths)
        assert torch.equal(fitted.weight, base.fit(states, labels, tokens).weight) is same


def test_what_cannot_be_trained_on() -> None:
    states, labels, tokens = clouds(50)
    with pytest.raises(InvalidValue, match="50 are sound, 0 word salad"):
        Training().fit(states, torch.zeros_like(labels), tokens)
    with pytest.raises(InvalidValue, match="more than 10 tokens"):
        Training().fit(states, labels, torch.full_like(tokens, 10))
    with pytest.raises(InvalidValue, match="as many states"):
        Training().fit(states[:-1], labels, tokens)
    with pytest.raises(InvalidValue, match="finite"):
        Training().fit(states * float("inf"), labels, tokens)
    for field, value in (("lr", 0.0), ("epochs", 0), ("batch_size", 0), ("seed", -1)):
        with pytest.raises(InvalidValue, match=f"{field} = "):
            Training(**{field: value})  # type: ignore[arg-type]


# ---------------------------------------------------------------- measuring


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9]), st.booleans()), max_size=40))
@settings(max_examples=200)
def test_auroc_counts_pairs(pairs: list[tuple[float, bool]]) -> None:
    numbers, labels = [p for p, _ in pairs], [int(y) for _, y in pairs]
    salad = [p for p, y in pairs if y]
    sound = [p for p, y in pairs if not y]
    wins = sum((a > b) + (a == b) / 2 for a in salad for b in sound)
    found = auroc(numbers, labels)
    if not salad or not sound:
        assert found is None
    else:
        assert found == pytest.approx(wins / (len(salad) * len(sound)))


def test_counts() -> None:
    assert evaluate([0.9, 0.5, 0.2, 0.6], [1, 1, 0, 0]) == {
        "chunks": 4,
        "salad": 2,
        "called_salad": 2,
        "accuracy": 0.5,
        "auroc": 0.75,
    }
    assert evaluate([], []) == {
        "chunks": 0,
        "salad": 0,
        "called_salad": 0,
        "accuracy": None,
        "auroc": None,
    }
    with pytest.raises(InvalidValue, match="one a number"):
        evaluate([0.5], [])

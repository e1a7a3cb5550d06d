"""`lil chopper train`, end to end, and the weights that ship with the reasoner."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import check_chopper
import pytest
import torch
from reasoner_training.tokenizer import build_tokenizer
from transformers import AutoModelForCausalLM

import lil
from attention.errors import InvalidValue
from experiments import chopper_training as chopper
from experiments.cli import main
from experiments.grid import detectors, models, plan
from experiments.grid.config import Config
from experiments.reasoner import problem
from experiments.store.study import Study
from lil.chopper import Classifier, Labeller, chunks

CapFd = pytest.CaptureFixture[str]
SMALL = ["--threads", "1", "--short", "0", "--run", "2", "--backend", "h2o", "--budget", "48"]


@pytest.fixture(scope="module")
def chatty(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a liking for blank lines: it repeats itself, and not at once."""
    folder = tmp_path_factory.mktemp("chatty")
    tokenizer = build_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        ids = tokenizer([problem("easy", "train", i).prompt for i in range(4)])["input_ids"]
        outputs = [model.base_model(torch.tensor([row])).last_hidden_state[0] for row in ids]
        usual = torch.cat(outputs).mean(dim=0)
        blank = tokenizer("\n\n")["input_ids"][0]
        model.lm_head.weight[blank] += 3.0 * usual / usual.norm()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with traces and weights, and its command."""
    out = tmp_path_factory.mktemp("chopper") / "out"
    command = ["chopper", "train", "--preset", "demo-small", "--model", str(chatty), *SMALL]
    command += ["--dataset", "easy", "--limit", "5", "--held-out-limit", "3", "--out", str(out)]
    command += ["--max-new-tokens", "40", "--temperature", "0.7"]
    assert main(command) == 0
    return out, command


def _json(capfd: CapFd, *arguments: str) -> Any:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_training_writes_weights_and_says_how_good_they_are(
    trained: tuple[Path, list[str]], chatty: Path, capfd: CapFd
) -> None:
    out, command = trained
    first = (out / "chopper.safetensors").read_bytes()
    document = _json(capfd, *command)  # decodes nothing, and trains the same
    assert (out / "chopper.safetensors").read_bytes() == first
    classifier = Classifier.load(out / "chopper.safetensors")
    assert document["digest"] == classifier.digest
    assert document["weights"] == str(out / "chopper.safetensors")
    assert classifier.model == str(chatty)
    assert classifier.hidden_size == 32
    training = classifier.training
    assert training["split"] == "train"
    assert training["problems"] == {"easy": 5}
    assert training["traces"] == 10
    assert [b["name"] for b in training["backends"]] == ["full", "h2o"]
    assert 0 < training["salad_chunks"] < training["chunks"]
    assert classifier.labeller["run"] == 2

    for kind, problems in (("training", 5), ("held_out", 3)):
        rows = document["rows"][kind]
        names = [(row["dataset"], row["backend"]) for row in rows]
        assert names == [("easy", "full"), ("easy", "h2o"), ("all", "all")]
        assert [row["traces"] for row in rows] == [problems, problems, 2 * problems]
        assert rows[-1]["chunks"] == rows[0]["chunks"] + rows[1]["chunks"]
        assert rows[-1]["salad_traces"] >= rows[-1]["chopped_salad"]
    whole = document["rows"]["training"][-1]
    assert (whole["chunks"], whole["salad"]) == (training["chunks"], training["salad_chunks"])

    assert main(command) == 0
    printed = capfd.readouterr().out
    assert "held-out problems" in printed
    assert f"({classifier.digest})" in printed


def test_numbers_are_those_of_the_stored_traces(trained: tuple[Path, list[str]]) -> None:
    """Labels and accuracy of one sweep, counted again from its traces."""
    out, _ = trained
    opened = Study.open(out / "train")
    loaded = models.load(models.find(opened.config.models[0]), "float32", "cpu")
    labeller = Labeller(run=2)
    found = chopper.labelled(opened, labeller)
    read = chopper.with_states(loaded, opened, found, -2)
    classifier = Classifier.load(out / "chopper.safetensors")
    rows = chopper.measured(classifier, read, 0)
    right = total = salad = 0
    for one in read:
        pieces = one.trace.text_pieces
        texts, start = [], 0
        for end, piece in enumerate(pieces, start=1):
            if b"\n\n" in piece:
                texts.append(b"".join(pieces[start:end]).decode())
                start = end
        first = labeller.salad_from(texts)
        logits = one.states.double() @ classifier.weight.double() + classifier.bias
        for i, logit in enumerate(logits.tolist()):
            truth = first is not None and i >= first
            right += (logit > 0) == truth
            total += 1
            salad += truth
    assert rows[-1]["chunks"] == total > 30
    assert rows[-1]["salad"] == salad > 5
    assert rows[-1]["accuracy"] == pytest.approx(right / total)
    lengths = [tokens for one in read for tokens in one.lengths]
    for short in (1, 4):
        counted = chopper.measured(classifier, read, short)[-1]["chunks"]
        assert counted == sum(tokens > short for tokens in lengths) < total

    # What a store holds beyond the cap is not looked at.
    capped = dataclasses.replace(opened.config, max_new_tokens=9)
    for one in chopper.labelled(dataclasses.replace(opened, config=capped), labeller):
        most = 9 if one.run.cell.is_full else 18
        assert one.trace.tokens <= most
        assert not one.chunks or one.chunks[-1].end <= most


def test_the_detector_agrees_with_the_table(
    trained: tuple[Path, list[str]],
) -> None:
    """Traces counted as chopped are those the detector stops, its numbers recalled."""
    out, _ = trained
    opened = Study.open(out / "held-out")
    loaded = models.load(models.find(opened.config.models[0]), "float32", "cpu")
    found = chopper.labelled(opened, Labeller(run=2))
    read = chopper.with_states(loaded, opened, found, -2)
    detector = lil.Chopper(out / "chopper.safetensors")
    rows = chopper.measured(detector.classifier, read, 0)
    stopped = 0
    for one in read:
        watcher = detector.watch()
        ends = [chunk.end for chunk in chunks(one.trace.text_pieces)]
        numbers = torch.sigmoid(detector.classifier.logits(one.states)).tolist()
        watcher.recall({detector.signal: tuple(zip(ends, numbers, strict=True))})
        # One token more: a verdict follows the token behind the chunk.
        stopped += watcher.update([*one.trace.text_pieces, b" more"]) is not None
    assert stopped == rows[-1]["chopped_salad"] + rows[-1]["chopped_sound"]
    assert 0 < stopped < len(read)


def classes(document: dict[str, Any]) -> int:
    """Chunks of the rarer class among the training problems, as the table counts them."""
    row = document["rows"]["training"][-1]
    return int(min(row["salad"], row["chunks"] - row["salad"]))


@pytest.mark.slow
def test_stored_traces_serve_as_well(
    trained: tuple[Path, list[str]], capfd: CapFd, tmp_path: Path
) -> None:
    out, command = trained
    first = _json(capfd, *command)
    weights = tmp_path / "w.safetensors"
    base = ["chopper", "train", "--from", str(out / "train"), *SMALL[:6]]
    again = _json(capfd, *base, "--held-out", str(out / "held-out"), "--weights", str(weights))
    assert again == first | {"weights": str(weights)}
    assert weights.read_bytes() == (out / "chopper.safetensors").read_bytes()
    alone = _json(capfd, *base, "--weights", str(weights))
    assert alone["rows"]["training"][-1]["traces"] == 8
    assert alone["rows"]["held_out"][-1]["traces"] == 2  # every fifth problem, twice
    assert alone["digest"] != first["digest"]
    recipe = ["--epochs", "3", "--lr", "0.02", "--train-batch", "16", "--train-seed", "7"]
    labels = ["--similarity", "0.9", "--window", "5"]
    recipe += ["--block", "-1", "--short", "2", "--weights", str(weights)]
    other = _json(capfd, *base, *recipe, *labels)
    told = {name: other["training"][name] for name in ("epochs", "lr", "batch_size", "seed")}
    assert told == {"epochs": 3, "lr": 0.02, "batch_size": 16, "seed": 7}
    assert (other["labeller"]["similarity"], other["labeller"]["window"]) == (0.9, 5)
    assert other["training"]["chunks_of_each_class"] == classes(other) < classes(alone)
    assert other["block"] == Classifier.load(weights).block == -1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--held-out", "STORE/train"], "other problems than those of the training"),
        (["--limit", "3"], "limit = '3'"),
        (["--preset", "demo"], "preset = 'demo'"),
        (["--block", "1"], "block = 1"),
        (["--block", "-9"], "block = -9"),
        (["--embedder", "/nowhere/minilm"], "embedder = '/nowhere/minilm'"),
        (["--similarity", "2"], "similarity = 2"),
        (["--epochs", "0"], "epochs = 0"),
        (["--weights", "/proc/no/w.safetensors"], "/proc"),
        (["--short", "1000"], "more than 1000 tokens"),
    ],
)
def test_bad_input(
    trained: tuple[Path, list[str]], arguments: list[str], message: str, capfd: CapFd
) -> None:
    store = trained[0]
    given = [argument.replace("STORE", str(store)) for argument in arguments]
    base = ["chopper", "train", "--from", str(store / "train"), *SMALL[:6]]
    before = (store / "chopper.safetensors").read_bytes()
    capfd.readouterr()
    assert main([*base, "--out", str(store), *given]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert (store / "chopper.safetensors").read_bytes() == before


def test_what_cannot_be_used_is_told_before_anything_is_decoded(
    tmp_path: Path, capfd: CapFd
) -> None:
    for wrong in (["--block", "1"], ["--run", "0"], ["--held-out-limit", "0"]):
        assert main(["chopper", "train", "--out", str(tmp_path), *wrong]) == 2
        assert wrong[0].strip("-") in capfd.readouterr().err
        assert not list(tmp_path.iterdir())


def test_a_store_of_other_weights_is_refused(
    trained: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    out, _ = trained
    found = models.find

    def other(name: str, *more: Any, **named: Any) -> models.ModelSource:
        return models.ModelSource(name, found(name, *more, **named).location, None, "0" * 32)

    monkeypatch.setattr(models, "find", other)
    assert main(["chopper", "train", "--from", str(out / "train")]) == 2
    assert "was made with" in capfd.readouterr().err


def test_a_vocabulary_without_blank_lines_is_refused(
    trained: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, capfd: CapFd, tmp_path: Path
) -> None:
    """As SmolLM2's, which writes a blank line as two tokens: hardly any chunk ever ends."""
    out, _ = trained
    whole = chopper.chunks
    monkeypatch.setattr(chopper, "chunks", lambda _: [])
    weights = tmp_path / "w.safetensors"
    command = ["chopper", "train", "--from", str(out / "train"), "--weights", str(weights)]
    assert main(command) == 2
    said = capfd.readouterr().err
    assert "a model that writes a blank line as one token" in said
    assert "blank lines in 10 texts 0 are one" in said
    assert not weights.exists()
    # Texts without any blank line say nothing of the vocabulary.
    monkeypatch.setattr(chopper, "chunks", whole)
    found = chopper.labelled(Study.open(out / "train"), Labeller(run=2))
    plain = [
        dataclasses.replace(one, chunks=(), trace=dataclasses.replace(one.trace, pieces=(b"a",)))
        for one in found
    ]
    chopper.require_chunks(plain, "m")
    chopper.require_chunks(found, "m")


def test_every_fifth_problem_of_each_data_set_is_held_out() -> None:
    runs = [("a", str(at // 2)) for at in range(22)] + [("b", str(at)) for at in range(4)]
    assert chopper.every_fifth(runs) == {("a", "4"), ("a", "9")}
    with pytest.raises(InvalidValue, match="five or more"):
        chopper.every_fifth(runs[-4:])


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["stored", "int8"])
def test_another_sweeps_texts_are_read_with_the_weights_that_made_them(
    chatty: Path, weights: str, tmp_path: Path, capfd: CapFd
) -> None:
    """Trained on greedy texts, measured on drawn ones of problems that the training held out."""
    common = ["sweep", "--preset", "demo-small", "--model", str(chatty), "--weights", weights]
    common += ["--dataset", "easy", "--limit", "5", "--backend", "h2o", "--budget", "48"]
    common += ["--max-new-tokens", "40", "--cap", "40", "--threads", "1", "--null", "none"]
    common += ["--no-figures", "--no-page"]
    file = tmp_path / "w.safetensors"
    first, drawn = str(tmp_path / "first"), str(tmp_path / "drawn")
    sampled = ["--detector", "none", "--temperature", "0.7"]
    assert main([*common, *sampled, "--out", first]) == 0
    train = ["chopper", "train", "--from", first, "--weights", str(file), *SMALL[2:6]]
    trained = _json(capfd, *train)
    digest = trained["training"]["model_digest"]
    assert digest.endswith("+int8") == (weights == "int8")

    # The numbers that decoding records are those that reading gives.
    found = ["--detector", "chopper", "--set", f"detector_params.chopper.weights={file}"]
    assert main([*common, *found, "--temperature", "0.9", "--seed", "3", "--out", drawn]) == 0
    told, out = check_chopper, tmp_path / "read.json"
    asked = [drawn, "--classifier", str(file), "--trained", first, "--out", str(out)]
    assert told.main(asked) == 0
    rows = json.loads(out.read_text())["rows"]["held_out"]
    assert [row["backend"] for row in rows] == ["full", "h2o", "all"]
    assert [row["traces"] for row in rows] == [1, 1, 2]
    study = Study.open(Path(drawn))
    signal = lil.Chopper(file).signal
    source = models.find(str(chatty), weights=weights)
    loaded = models.load(source, "float32", "cpu")
    labels = chopper.labelled(study, Labeller(run=2))
    compared = 0
    for one in chopper.with_states(loaded, study, labels, -2):
        numbers = dict(one.trace.signals[signal])
        read = torch.sigmoid(Classifier.load(file).logits(one.states)).tolist()
        for chunk, number in zip(one.chunks, read, strict=True):
            if chunk.end in numbers:  # one that ends its text has none
                assert number == pytest.approx(numbers[chunk.end], abs=0.02)
                compared += 1
    assert compared > 10
    kept = [
        one for one in labels if one.run.item_id == list(study.plan.runs(one.run.cell))[4].item_id
    ]
    short = trained["training"]["short"]
    assert rows[-1]["chunks"] == sum(n > short for one in kept for n in one.lengths)
    assert rows[-1]["salad"] == sum(
        label for one in kept for label, n in zip(one.labels, one.lengths, strict=True) if n > short
    )

    other = ["--classifier", str(lil_chopper()), "--trained", first, "--out", str(out)]
    assert told.main([drawn, *other]) == 2
    assert "classifier" in capfd.readouterr().err


def lil_chopper() -> Path:
    """The classifier that ships, which is another model's."""
    return Path(
        next(iter((Path(chopper.__file__).parent / "reasoner").glob("chopper*.safetensors")))
    )


def test_a_sweeps_chopper_is_its_models(tiny_config: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny_config(models="reasoner", detectors="chopper")
    (detector,) = detectors.build_detectors(config)
    assert isinstance(detector, lil.Chopper)
    assert detector.params()["weights"] == "experiments.reasoner:chopper-2.safetensors"
    by_name = tiny_config(
        detectors="chopper", detector_params={"chopper": {"weights": "reasoner", "short": 4}}
    )
    assert detectors.build_detectors(by_name)[0].params()["short"] == 4
    with pytest.raises(InvalidValue, match=r"chopper\.weights=FILE"):
        detectors.build_detectors(tiny_config(detectors="chopper"))
    detector.classifier.save(tmp_path / "w.safetensors")
    by_file = {"chopper": {"weights": str(tmp_path / "w.safetensors")}}
    own = detectors.build_detectors(tiny_config(detectors="chopper", detector_params=by_file))
    assert own == [detector]


def test_the_weights_that_ship_are_the_checkpoints() -> None:
    classifier = Classifier.load(plan.SHIPPED_CHOPPERS["reasoner"])
    assert classifier.model == "reasoner"
    assert classifier.block == -2
    assert classifier.training["model_digest"] == models.find("reasoner").digest
    assert classifier.training["split"] == "train"
    assert classifier.training["epochs"] == 50
    assert classifier.labeller == Labeller().params()


@pytest.mark.slow
def test_the_reasoners_word_salad_is_told(capfd: CapFd, tmp_path: Path) -> None:
    command = ["chopper", "train", "--dataset", "hard", "--limit", "2", "--held-out-limit", "1"]
    command += ["--backend", "h2o", "--budget", "256", "--max-new-tokens", "900"]
    command += ["--threads", "1"]
    document = _json(capfd, *command, "--out", str(tmp_path))
    full, h2o, whole = document["rows"]["training"]
    assert full["salad_traces"] == full["chopped_sound"] == 0
    assert h2o["salad_traces"] > 0
    assert whole["auroc"] > 0.95
    assert whole["accuracy"] > 0.9
    assert lil.Chopper(document["weights"]).digest == document["digest"]

"""What the harness's arguments ask for, and stop strings; the harness itself is not needed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from attention.errors import InvalidValue
from experiments.cli import main
from experiments.evals.model_args import GenerationArguments, Until, configuration, text_before
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import build_backends, build_penalties
from lil import Trace, Verdict
from lil.testing import check

PIECES = [b"We ", b"st", b"op he", "ré".encode()[:2], "ré".encode()[2:], b"\n\nQ", b": more"]


def trace(pieces: list[bytes], finish: str = "length") -> Trace:
    """A trace of this text, its ids counted from 10."""
    ids = tuple(range(10, 10 + len(pieces)))
    parts: dict[str, Any] = dict.fromkeys(Trace.__dataclass_fields__)
    return Trace(**parts | {"new_ids": ids, "pieces": tuple(pieces), "finish": finish})


@pytest.mark.parametrize(
    ("strings", "token", "text"),
    [
        (("stop",), 3, "We "),
        (("é",), 5, "We stop her"),
        (("\n\n", "Q:"), 6, "We stop heré"),
        (("Q: more", "op h"), 3, "We st"),
        (("W",), 1, ""),
        (("never",), None, "We stop heré\n\nQ: more"),
    ],
)
def test_a_stop_string_ends_a_generation(
    strings: tuple[str, ...], token: int | None, text: str
) -> None:
    verdict = Until(strings).watch().update(PIECES)
    assert verdict == (None if token is None else Verdict("until", token, {"step": token}))
    seen = PIECES[:token]
    assert text_before(trace(seen), strings) == text
    assert text_before(trace(PIECES), strings) == text  # what came later changes nothing


def test_other_models_are_decoded_with_the_backend_that_was_asked_for() -> None:
    """The paper's preset is in half precision, where sweeps put a null behind each grid."""
    config = configuration({"pretrained": "other/model", "backend": "h2o", "budget": 64})
    assert config.dtype == "bfloat16"
    assert [backend.name for backend in build_backends(config)] == ["full", "h2o"]


def test_stop_strings_keep_the_contract_of_detectors() -> None:
    check(Until(("op he",)), text=PIECES)
    for wrong in ((), ("a", "")):
        with pytest.raises(InvalidValue, match="strings"):
            Until(wrong)


def test_special_tokens_are_searched_but_are_no_text() -> None:
    pieces = [b"a", b"<|x|>", b"b", b"<|end|>", b"c", b"<eos>"]
    assert text_before(trace(pieces, "eos"), ["<|end|>"], {11, 13}) == "ab"
    assert text_before(trace(pieces, "eos"), [], {11, 13}) == "abc"
    assert text_before(trace(pieces, "eos"), ["|>b"], {11, 13}) == "a"


def test_thinking_is_none_of_the_text_that_a_task_sees() -> None:
    pieces = [b"a", b"</t", b">", b" b", b"</t>", b"\n c", b"|", b"d", b"<eos>"]
    for strings, seen in (([], "c|d"), (["a", "|"], "c")):
        assert text_before(trace(pieces, "eos"), strings, {14}, "</t>") == seen
    assert text_before(trace(pieces[:2], "length"), [], (), "</t>") == "a</t"


def test_arguments_are_those_of_a_configuration() -> None:
    config = configuration(
        {
            "backend": "quest",
            "budget": 64,
            "backend_params.quest.page": 16,
            "penalty": "lz",
            "penalty_params.lz.alpha": 0.2,
            "detector": "guardian:answer",
            "detector_params.guardian.f": 50,
            "action_params.answer.tokens": 30,
            "dtype": "float64",
            "batch_size": "4",
        }
    )
    backend = build_backends(config)[-1]
    assert (backend.name, backend.budget, backend.params()["page"]) == ("quest", 64, 16)
    assert backend.params()["dense_layers"] == 0  # the demo's, for the reasoner
    (penalty,) = build_penalties(config)[-1]
    assert penalty.params()["alpha"] == 0.2
    (detector,) = build_detectors(config)
    assert detector.params()["f"] == 50
    assert detector.action.to_dict()["tokens"] == 30
    assert (config.dtype, config.batch_size) == ("float64", 4)
    plain = configuration({})
    assert (build_backends(plain)[-1].name, plain.detectors, plain.penalties) == (
        *("full", ()),
        ("none",),
    )
    assert configuration({"pretrained": "some/model"}).dtype == "bfloat16"  # as papers have it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bakend": "h2o"}, "model argument = 'bakend'.*did you mean 'backend'"),
        ({"backend": "h2o"}, "budget = None: expected budget=N with backend=h2o"),
        ({"backend": "h2o,sink", "budget": 64}, "backends = 'h2o,sink': expected one"),
        ({"backend_params.quest": 3}, "model argument"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        configuration(arguments)


@pytest.mark.parametrize(
    ("options", "until", "tokens", "temperature"),
    [
        ({}, (), 99, 0.5),
        ({"until": "a", "max_new_tokens": 7}, ("a",), 7, 0.5),
        ({"until": ["a", "", "b"], "max_gen_toks": 5, "max_tokens": 9}, ("a", "b"), 5, 0.5),
        ({"until": None, "do_sample": False}, (), 99, 0.0),
        ({"do_sample": True, "temperature": 0.0, "num_beams": 1}, (), 99, 0.0),
        ({"do_sample": True, "temperature": 0.9}, (), 99, 0.9),
    ],
)
@pytest.mark.filterwarnings("ignore:do_sample")
def test_a_tasks_generation_arguments(
    options: dict[str, Any], until: tuple[str, ...], tokens: int, temperature: float
) -> None:
    config = configuration({"temperature": 0.5, "seed": 4, "top_p": 0.9})
    wanted = GenerationArguments.read(options, config, 99)
    assert (wanted.until, wanted.max_new_tokens) == (until, tokens)
    drawn = {"temperature": temperature, "seed": 4, "top_p": 0.9, "top_k": None}
    assert wanted.sampling == drawn


def test_sampling_without_a_temperature_is_transformers() -> None:
    assert (
        GenerationArguments.read({"do_sample": True}, configuration({}), 9).sampling["temperature"]
        == 1.0
    )
    with pytest.warns(UserWarning, match="do_sample=False"):
        GenerationArguments.read({"do_sample": False, "temperature": 0.7}, configuration({}), 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4}, "num_beams = 4"),
        ({"repetition_penalty": 1.1}, "generation argument = 'repetition_penalty'"),
        ({"max_gen_toks": 0}, "max_gen_toks = 0"),
        ({"until": [3]}, "until"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_what_is_not_supported_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        GenerationArguments.read(options, configuration({}), 9)


def test_without_the_packages_one_message_says_so(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "lm_eval" else find(name)
    )
    assert main(["eval", "--tasks", "easy"]) == 2
    assert "`scripts/setup lm-eval`" in capfd.readouterr().err
    assert main(["eval"]) == 2
    assert "--tasks" in capfd.readouterr().err

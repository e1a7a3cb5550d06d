"""The model `lil` of lm-evaluation-harness: text, likelihoods, and the score a sweep gives."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from documents import blocks, commands, files, run
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer

import lil
from attention import methods
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.reasoner import problem
from experiments.store.samples.replay import with_text
from experiments.store.study import Study

pytest.importorskip("lm_eval", reason="the extra `lm-eval` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:log-likelihoods are read")

if TYPE_CHECKING:
    from experiments.evals.harness import LilLM

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
PROMPTS = [problem("easy", "train", index).prompt for index in range(3)]


def ask(*arguments: Any, times: int = 1, doc: int = 0, idx: int = 0) -> list[Any]:
    """A request as the harness makes it, so many times."""
    return [SimpleNamespace(args=arguments, task_name="task", doc_id=doc, idx=idx)] * times


@pytest.fixture
def model(tiny_model: Path) -> Callable[..., LilLM]:
    """The harness's model of the tiny one."""
    from experiments.evals.harness import LilLM

    def make(**arguments: Any) -> LilLM:
        own = {"pretrained": str(tiny_model), "preset": "demo", "device": "cpu", "threads": 1}
        return LilLM(**{**own, **arguments})

    return make


def decoded(folder: Path, prompts: list[str], **options: Any) -> list[str]:
    """What `lil.decode` says to these prompts."""
    pretrained = AutoModelForCausalLM.from_pretrained(folder).eval()
    traces = lil.decode(pretrained, AutoTokenizer.from_pretrained(folder), prompts, **options)
    return [trace.text for trace in traces]


def test_texts_are_those_of_decode_cut_at_the_stop_strings(
    model: Callable[..., LilLM], tiny_model: Path
) -> None:
    ours = model(backend="h2o", budget=32, batch_size=2)
    full = decoded(tiny_model, PROMPTS, backend=methods.get("h2o", budget=32), max_new_tokens=40)
    middle = full[1][len(full[1]) // 2 :][:3]
    stops = {"until": ["<nowhere>", middle], "max_gen_toks": 40}
    requests = [
        *ask(PROMPTS[0], {"max_gen_toks": 40}, doc=0),
        *ask(PROMPTS[1], stops, doc=1),
        *ask(PROMPTS[2], {"until": "<nowhere>", "max_tokens": 40}, doc=2),
    ]
    texts = ours.generate_until(requests, disable_tqdm=True)
    assert texts == [full[0], full[1][: full[1].index(middle)], full[2]]
    about = ours.get_model_info()["lil"]
    assert about["generations"] == 3
    assert about["finish"]["until"] == 1
    assert about["tokens"] < 3 * 40
    assert about["keys_read"] > 0


def test_samples_of_one_request_differ_and_come_again(model: Callable[..., LilLM]) -> None:
    drawn = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12}
    first, again = (
        model(seed=3).generate_until(ask(PROMPTS[0], drawn, times=2), True) for _ in range(2)
    )
    assert first == again
    assert first[0] != first[1]
    assert model(seed=4).generate_until(ask(PROMPTS[0], drawn), True)[0] != first[0]


@pytest.mark.parametrize("backend", ["full", "h2o"])
def test_likelihoods_are_the_dense_models(
    backend: str, model: Callable[..., LilLM], tiny_model: Path
) -> None:
    budget = {} if backend == "full" else {"budget": 16}
    ours = model(backend=backend, batch_size=2, **budget)
    dense = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    pairs = [(PROMPTS[1], " 17 hours."), (PROMPTS[2], "a"), ("", "The pen")]
    answers = ours.loglikelihood([item for pair in pairs for item in ask(*pair)], disable_tqdm=True)
    for (context, after), (likelihood, is_greedy) in zip(pairs, answers, strict=True):
        before, following = (
            ours._encode_pair(context, after)
            if context
            else ([ours.prefix_token_id], ours.tok_encode(after))
        )
        assert len(before) > 16 or not context
        with torch.no_grad():
            scores = dense(torch.tensor([before + following])).logits[0].log_softmax(-1)
        steps = range(len(before) - 1, len(before) + len(following) - 1)
        expected = sum(float(scores[at, i]) for at, i in zip(steps, following, strict=True))
        assert likelihood == pytest.approx(expected, abs=1e-3)
        assert is_greedy == all(
            int(scores[at].argmax()) == i for at, i in zip(steps, following, strict=True)
        )

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    (trace,) = lil.decode(dense, tokenizer, [PROMPTS[0]], max_new_tokens=3)
    before, greedy = list(trace.prompt_ids), list(trace.new_ids)
    other = [*greedy[:-1], greedy[-1] + 1]
    texts = ours._loglikelihood_tokens([(None, before, greedy), (None, before, other)], True)
    assert [is_greedy for _, is_greedy in texts] == [True, False]
    assert texts[0][0] > texts[1][0]


def test_a_rolled_text_is_predicted_token_by_token(model: Callable[..., LilLM]) -> None:
    text = PROMPTS[0]
    whole = model(batch_size=3)
    ids = whole.tok_encode(text)
    (once,) = whole.loglikelihood_rolling(ask(text), disable_tqdm=True)
    (same, _), *_ = whole._loglikelihood_tokens([(None, [whole.prefix_token_id], ids)], True)
    assert once == pytest.approx(same, rel=1e-5)
    short, other = model(max_length=16, batch_size=3).loglikelihood_rolling(
        [*ask(text), *ask("The pen.")], disable_tqdm=True
    )
    assert short != pytest.approx(once, rel=1e-4)  # windows of 16 know less
    assert other == pytest.approx(whole.loglikelihood_rolling(ask("The pen."), True)[0], rel=1e-5)
    begin = whole.tokenizer.convert_ids_to_tokens(whole.prefix_token_id)
    whole.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, whole.prefix_token_id)]
    )
    assert whole.tok_encode(text) == [whole.prefix_token_id, *ids]
    assert whole.loglikelihood_rolling(ask(text), disable_tqdm=True) == [once]


def test_a_cache_gives_no_settings_the_texts_of_others(
    model: Callable[..., LilLM], tmp_path: Path
) -> None:
    from lm_eval.api.model import CachingLM

    def texts(**arguments: Any) -> tuple[str, int]:
        own = model(**arguments)
        (text,) = CachingLM(own, str(tmp_path / "a.db")).generate_until(asked)
        return text, own.get_model_info()["lil"]["generations"]

    asked = ask(PROMPTS[0], {"max_gen_toks": 24})
    settings = [{}, {"backend": "sink", "budget": 8}, {"penalty": "lz"}, {"detector": "budget"}]
    first = [texts(**arguments) for arguments in settings]
    assert [count for _, count in first] == [1] * len(settings)
    assert [texts(**arguments) for arguments in settings] == [(text, 0) for text, _ in first]
    with pytest.raises(InvalidValue, match="temperature of 0"):
        texts(temperature=0.5)


def test_a_long_context_keeps_its_end(model: Callable[..., LilLM], tiny_model: Path) -> None:
    ours = model(max_length=48)
    rest = AutoTokenizer.from_pretrained(tiny_model).decode(ours.tok_encode(PROMPTS[0])[-36:])
    assert len(ours.tok_encode(PROMPTS[0])) > 48
    with pytest.warns(UserWarning, match="cut to its last 36"):
        texts = ours.generate_until(ask(PROMPTS[0], {"max_gen_toks": 12}), True)
    assert texts == decoded(tiny_model, [rest], max_new_tokens=12)
    with pytest.raises(InvalidValue, match="max_gen_toks = 48"):
        ours.generate_until(ask(PROMPTS[0], {"max_gen_toks": 48}), True)


def test_chat_templates_are_the_tokenizers(model: Callable[..., LilLM]) -> None:
    ours = model()
    chat = [{"role": "user", "content": "Hello"}]
    with pytest.raises(InvalidValue, match="chat template"):
        ours.apply_chat_template(chat)
    ours.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert ours.apply_chat_template(chat) == "[user]Hello[assistant]"
    started = [*chat, {"role": "assistant", "content": "Well"}]
    assert ours.apply_chat_template(started, False) == "[user]Hello[assistant]Well"
    assert ours.chat_template(True) == ours.tokenizer.chat_template
    assert ours.loaded.source.digest in ours.tokenizer_name
    assert "/" not in ours.tokenizer_name


def test_the_harnesss_flags_yield_to_model_arguments(tiny_model: Path) -> None:
    from experiments.evals.harness import LilLM

    flags = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    arguments = {"pretrained": str(tiny_model), "preset": "demo", "threads": 1}
    made = LilLM.create_from_arg_obj({**arguments, "batch_size": 7}, flags)
    assert made.settings.batch_size == 7
    assert LilLM.create_from_arg_obj(arguments, flags).settings.batch_size == 1
    assert (
        LilLM.create_from_arg_obj(arguments, flags | {"batch_size": "auto"}).settings.batch_size > 1
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tasks", "a", "--limit", "3", "--samples", '{"a": [0]}'], "--limit must be None"),
        (["--config", "nowhere.yaml"], "not found"),
        (["--tasks", "a", "--model_args", "pretrained=a,b"], "--model_args = 'b'.*quotes"),
    ],
)
def test_what_the_harness_refuses_is_one_message(
    arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *arguments]) == 2
    (message,) = re.findall("(?m)^lil: error: (.*)", capfd.readouterr().err)
    assert re.search(reason, message)


def test_likelihoods_warn_once_that_no_method_changes_them(model: Callable[..., LilLM]) -> None:
    sparse = model(backend="h2o", budget=16)
    assert sparse.get_model_info()["lil"]["sparse"] is True
    with pytest.warns(UserWarning, match="one dense forward"):
        sparse.loglikelihood(ask(PROMPTS[0], " 17"), disable_tqdm=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparse.loglikelihood(ask(PROMPTS[0], " 17"), disable_tqdm=True)
        model().loglikelihood(ask(PROMPTS[0], " 17"), disable_tqdm=True)
    assert sparse.get_model_info()["lil"]["sparse"] is False


@pytest.mark.slow
def test_the_harness_gives_the_score_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the document: the same problems, the same texts, the same score."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for name, text in files(DOCUMENT).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (block,) = (part for part in blocks(DOCUMENT) if part.language == "console")
    documents = {}
    for step in commands(block):
        noun = step.command.split()[1]
        is_ours = step.command.startswith("lil ")
        done = run(step.command + (" --json" if is_ours else ""), tmp_path, tmp_path)
        assert done.returncode == 0, f"line {step.line}: {step.command}\n{done.stderr}"
        if is_ours:
            documents[noun] = json.loads(done.stdout)
    score = documents["eval"]["results"]["reasoner_easy"]["exact_match,boxed"]
    (row,) = (row for row in documents["sweep"]["rows"] if row["backend"] == "infllm")
    assert row["accuracy"] == score
    assert 0 < score < 1  # a score of nothing or all would be the same by chance

    (logged,) = (tmp_path / "results").rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in logged.read_text().splitlines()]
    texts = {line["doc"]["prompt"]: line["resps"][0][0] for line in lines}
    study = Study.open(tmp_path / "store")
    swept = [
        sample for sample in with_text(study.samples([]), study.store) if sample.backend == "infllm"
    ]
    assert sorted(texts.values()) == sorted(sample.text or "" for sample in swept)
    about = documents["eval"]["config"]["lil"]
    assert about["generations"] == 5
    assert about["tokens"] == sum(sample.tokens or 0 for sample in swept)
    assert about["keys_read"] == pytest.approx(sum(sample.keys_read or 0 for sample in swept))

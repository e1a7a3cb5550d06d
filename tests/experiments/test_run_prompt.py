"""`lil run` of a prompt of one's own, and of problems whose prompts are shown as the model sees
them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from reasoner_training.tokenizer import build_tokenizer
from sweeping import jsonl

from experiments.cli import main


@pytest.fixture
def run(tiny_model: Path, capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        fixed = ["--model", str(tiny_model), "--max-new-tokens", "12", "--threads", "1", "--json"]
        assert main(["run", *fixed, *arguments]) == code
        out, err = capsys.readouterr()
        return (json.loads(out) if out else {}), err

    return command


def test_a_prompt_of_ones_own_is_decoded_and_not_judged(run):
    document, err = run("--prompt", "1 2 3")
    (sample,) = document["samples"]
    assert (sample["prompt"], sample["dataset"]) == ("1 2 3", None)
    assert (sample["gold"], sample["scorer"], sample["correct"]) == (None, "none", None)
    assert sample["prompt_tokens"] == len(build_tokenizer()("1 2 3")["input_ids"])
    assert 1 <= sample["tokens"] <= 12
    assert "1 2 3" in err
    for word in ("right", "wrong", "None"):
        assert word not in err


@pytest.mark.parametrize("backend", [("full",), ("h2o", "--budget", "32")])
def test_half_precision_decodes_with_the_backend_that_was_asked_for(run, backend):
    """Sweeps put a null behind it there; the presets of other models are in half precision."""
    document, _ = run("--prompt", "1 2 3", "--dtype", "bfloat16", "--backend", *backend)
    assert document["backend"]["name"] == backend[0]


def test_a_prompt_may_be_piped_and_put_into_a_template(run, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("1 2 3"))
    piped, _ = run("--prompt", "-", "--backend", "h2o", "--budget", "32")
    assert piped["samples"][0]["prompt"] == "1 2 3"
    template = tmp_path / "t.txt"
    template.write_text("4 {problem} 5")
    document, _ = run("--prompt", "1 2 3", "--prompt-template", str(template))
    assert document["samples"][0]["prompt_text"] == build_tokenizer().decode(
        build_tokenizer()("4 1 2 3 5")["input_ids"]
    )
    template.write_text("4 {question} 5")
    _, err = run("--prompt", "1", "--prompt-template", str(template), code=2)
    assert "{question}" in err


def test_no_prompt_is_refused(run):
    _, err = run("--prompt", " ", code=2)
    assert "prompt = ' '" in err


def test_prompts_are_shown_as_the_model_sees_them(run, tiny_model, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "<think> {{ messages[0].content }} </think>"
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    rows = [{"question": "1 2", "answer": ["7", "8"]}, {"question": "3", "answer": "7"}]
    file = jsonl(tmp_path / "p.jsonl", *rows)
    document, err = run("--dataset", file, "--scorer", "exact", "--limit", "1")
    (sample,) = document["samples"]
    assert sample["prompt_text"].startswith("<think>")
    assert "<think>" in err
    assert "wrong, 7 or 8 is right" in " ".join(err.split())
    assert "1 of 2 problems" in " ".join(err.split())

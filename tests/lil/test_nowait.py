"""NoWait: which tokens are out, and that none of them is ever chosen."""

from __future__ import annotations

import pytest
import torch
from acting_rows import PROMPTS
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

import lil
from attention.errors import InvalidValue
from experiments.cli import main
from experiments.reasoner import checkpoint_path, problem
from lil.penalties import NoWaitPenalty
from lil.penalties.nowait import WORDS


def spoken(piece: bytes) -> str:
    """A token's text from its first letter or digit on, in small letters."""
    text = piece.decode(errors="replace").lower()
    while text and not text[0].isalnum():
        text = text[1:]
    return text


def test_tokens_are_those_that_begin_with_a_word() -> None:
    names = [b" Wait", b"WAITING", b".wait", b" know", b"\n-But", b"\xffhm", b"h", b"", b"buttons"]
    assert NoWaitPenalty().with_tokens(names).tokens == (0, 1, 2, 4, 8)
    assert NoWaitPenalty(words=["H+", "k"], tokens=[9]).with_tokens(names).tokens == (3, 9)
    with pytest.raises(InvalidValue, match="words = 'halt': expected words with which some token"):
        NoWaitPenalty(words=["halt"]).with_tokens(names)
    with pytest.raises(InvalidValue, match=r"with_tokens\(lil.token_bytes\(tokenizer\)\)"):
        NoWaitPenalty()(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 9))


@pytest.mark.parametrize("speculate", [0, 2])
def test_no_such_token_is_ever_chosen(qwen, tokenizer, speculate: int) -> None:
    """Five rows in three places, each from its own stream."""
    pieces = enumerate(lil.token_bytes(tokenizer))
    out = {i for i, piece in pieces if spoken(piece).startswith(("word1", "has"))}
    assert len(out) == 12
    options = {"temperature": 1.0, "max_new_tokens": 60, "batch_size": 3, "speculate": speculate}

    def run(*penalties: NoWaitPenalty) -> list[lil.Trace]:
        return lil.decode(qwen, tokenizer, [*PROMPTS, [7]], penalties=penalties, **options)

    assert all(out.intersection(trace.new_ids) for trace in run())
    traces = run(NoWaitPenalty(words=["WORD1", "has"]))
    assert not any(out.intersection(trace.new_ids) for trace in traces)


def test_in_generate_it_is_that_of_decode() -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    prompt = problem("hard", "test", 1).prompt
    penalties = [NoWaitPenalty()]
    (trace,) = lil.decode(model, tokenizer, [prompt], penalties=penalties, max_new_tokens=99)
    out = [i for i, x in enumerate(lil.token_bytes(tokenizer)) if spoken(x).startswith(WORDS)]
    assert not set(out).intersection(trace.new_ids)
    inputs = tokenizer(prompt, return_tensors="pt")
    known = NoWaitPenalty().with_tokens(lil.token_bytes(tokenizer))
    assert known.tokens == tuple(out)
    ids = model.generate(
        **inputs, logits_processor=LogitsProcessorList([known]), max_new_tokens=99, do_sample=False
    )
    assert ids[0, inputs["input_ids"].shape[1] :].tolist() == list(trace.new_ids)


def test_words_that_no_token_begins_with_are_refused_before_a_sweep_decodes(
    tmp_path, capfd: pytest.CaptureFixture[str]
) -> None:
    penalty = 'nowait(words=["halt"])'
    typed = ["sweep", "--penalty", penalty, "--limit", "1", "--out", str(tmp_path / "out")]
    assert main([*typed, "--backend", "full", "--dataset", "easy"]) == 2
    assert "words = 'halt'" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()

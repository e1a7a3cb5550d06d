"""Detectors that ask the model: what they ask costs, says and leaves as it was."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from acting_rows import CUE, CUE_IDS, backend, fires
from acting_rows import run as decode
from tiny_models import FIVE_PROMPTS, WORDS, Endings, record

import attention
import lil
from attention.errors import InvalidValue
from experiments.grid import data, models
from lil import detectors
from lil.detectors.base.asking import Trial

#: Tokens of the tiny models' texts.
WORD = WORDS[7].strip()


def probes() -> list[lil.Detector]:
    """Every rule and place; `stall` notes each state."""
    return [
        lil.Stall(longest=1, before=1),
        lil.Confidence(cue=CUE, words=" ".join(f"word{i}" for i in range(12)), tokens=3),
        lil.Entropy(cue=CUE, tokens=2),
        lil.Agreement(cue=CUE, at=7, tokens=4),
    ]


def run(qwen: Any, tokenizer: Any, detectors: Any = (), **options: Any) -> list[lil.Trace]:
    settings = {"prompts": FIVE_PROMPTS, "penalties": [Endings()]} | options
    return decode(qwen, tokenizer, detectors, **settings)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("full", 0.8), ("quest", 0.0), ("h2o", 0.8), ("infllm", 0.0), ("sink", 0.8)],
)
def test_who_is_asked_goes_on_as_if_nobody_had(
    qwen: Any, tokenizer: Any, name: str, temperature: float
) -> None:
    options = {"backend": backend(name), "temperature": temperature, "max_new_tokens": 45}
    plain = run(qwen, tokenizer, probes=probes()[:1], **options)
    asked = run(qwen, tokenizer, probes=probes(), **options)
    assert all(any(trace.signals[name] for trace in asked) for name in asked[0].signals)
    for one, other in zip(plain, asked, strict=True):
        (states,) = one.signals
        assert len(other.signals) == 1 + 3 * 4
        assert other.signals[states] == one.signals[states]  # bit for bit, at every token
        assert record(one) == record(replace(other, signals=one.signals))


@pytest.mark.parametrize("name", ["full", "quest", "h2o", "sink"])
def test_an_answer_and_its_cost_are_those_of_the_action(
    qwen: Any, tokenizer: Any, name: str
) -> None:
    """The oracle: a run that is given the cue, and goes on."""
    options = {"backend": backend(name), "check_every": 1, "penalties": []}
    agreement = lil.Agreement(cue=CUE, at=20, tokens=4)
    asked = run(qwen, tokenizer, probes=[agreement], **options)
    answered = run(qwen, tokenizer, [fires(20, detectors.Answer(cue=CUE, tokens=4))], **options)
    for probed, acted in zip(asked, answered, strict=True):
        assert acted.new_ids[20:23] == tuple(CUE_IDS)
        text = b"".join(acted.pieces[23:27]).lstrip()
        answer = text.partition(b"\n")[0].strip()
        signals = {name.rpartition(":")[2]: dict(of) for name, of in probed.signals.items()}
        number = agreement.number(Trial(agreement, [], answer))
        assert probed.signals[agreement.signal][0] == (20, number)
        tokens = int(signals["tokens"][20])
        assert tokens <= 7
        keys = acted.cost_at(20 + tokens).keys_read - acted.cost_at(20).keys_read
        assert signals["keys"][20] == keys
        assert signals["seconds"][20] > 0
        total = detectors.asked(probed.signals)
        assert total["keys"] == math.fsum(signals["keys"].values())


@pytest.mark.parametrize("at", ["word", "chunk"])
def test_numbers_are_those_of_transformers(qwen: Any, tokenizer: Any, at: str) -> None:
    words = " ".join(f"word{i}" for i in range(12))
    rules = [kind(cue=CUE, at=at, words=words, tokens=3) for kind in (lil.Confidence, lil.Entropy)]
    for trace in run(qwen, tokenizer, probes=rules, temperature=0.8):
        confidences, entropies = (trace.signals[rule.signal] for rule in rules)
        assert confidences
        for (place, confidence), (_, entropy) in zip(confidences, entropies, strict=True):
            newest = trace.pieces[place] if at == "word" else trace.pieces[place - 1]
            assert (newest.strip().decode() in words.split()) if at == "word" else b"\n\n" in newest
            ids = [*trace.prompt_ids, *trace.new_ids[:place], *CUE_IDS]
            best, doubt = [], []
            text = b""
            while len(best) < 3 and rules[0].end(text) is None:
                with torch.no_grad():
                    scores = qwen(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                best.append(float(scores.max()))
                doubt.append(float(-(scores.exp() * scores).sum()))
                ids.append(int(scores.argmax()))
                text += tokenizer.decode(ids[-1:]).encode()
            assert confidence == pytest.approx(math.exp(sum(best) / len(best)), rel=1e-6)
            assert entropy == pytest.approx(sum(doubt) / len(doubt), rel=1e-6)


@pytest.mark.parametrize("name", ["full", "h2o"])
@pytest.mark.parametrize("at", ["word", "chunk"])
def test_an_answer_follows_what_was_asked_about(
    qwen: Any, tokenizer: Any, at: str, name: str
) -> None:
    """The oracle: the same cue at that place, whoever gives it."""
    options = {"backend": backend(name), "prompts": FIVE_PROMPTS[:1]}
    answer = detectors.Answer(cue=CUE, tokens=9)
    words = " ".join(f"word{i}" for i in range(20))
    asking = lil.Confidence(cue=CUE, at=at, words=words, above=0.04, tokens=2, on_stop=answer)
    (acted,) = run(qwen, tokenizer, [asking], **options)
    assert acted.action is not None
    step, kept = acted.action["step"], acted.action["kept"]
    assert step == kept + (2 if at == "word" else 1)
    assert acted.signals[asking.signal][-1] == (kept, acted.action["evidence"]["confidence"])
    (same,) = run(qwen, tokenizer, [fires(step, answer, cut=kept)], **options)
    assert (acted.new_ids, acted.dropped) == (same.new_ids, same.dropped)
    assert [c._replace(seconds=0.0) for c in acted.checks] == [
        c._replace(seconds=0.0) for c in same.checks
    ]


BOX = "\n\n</think>\n\nThe answer is \\boxed{"
RULES = (
    lil.Confidence(cue=BOX, words="After Again Finally Resume So", above=0.5),
    lil.Entropy(cue=BOX, at="sentence", measure="mean", alpha=1, least=1, below=0.3),
    lil.Entropy(cue=BOX, at=8, below=0.4, least=4),
    lil.Agreement(cue=BOX, at="chunk", times=2, tokens=4),
)


@pytest.mark.parametrize("texts", [10, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", range(len(RULES)))
def test_live_is_replayed(at: int, texts: int) -> None:
    """Verdicts and costs, of one method: its rule over ten texts, all rules over fifty."""
    loaded = models.load(models.find(models.REASONER), "float32", "cpu")
    items = data.load_set("easy", "study", len(RULES) * texts).items[at * texts :][:texts]
    prompts = [item.prompt_ids(loaded.tokenizer) for item in items]
    name = ("full", "h2o", "quest", "sink")[at]
    method = attention.get(name) if name == "full" else attention.get(name, budget=64)
    rules, cap = (RULES[at : at + 1], 95) if texts == 10 else (RULES, 240)
    options = {"backend": method, "max_new_tokens": cap, "batch_size": 50}
    plain = lil.decode(loaded.model, loaded.tokenizer, prompts, probes=rules, **options)
    fired = 0
    for rule in rules:
        live = lil.decode(loaded.model, loaded.tokenizer, prompts, detectors=[rule], **options)
        for trace, stopped in zip(plain, live, strict=True):
            watcher = detectors.replayed(lil.Trace.from_dict(trace.to_dict()), rule)
            costs, spent = detectors.asked(watcher.seen()), detectors.asked(stopped.signals)
            assert (costs["tokens"], costs["keys"]) == (spent["tokens"], spent["keys"])
            if watcher.verdict is None:
                assert (stopped.finish, stopped.new_ids) == (trace.finish, trace.new_ids)
            else:
                fired += 1
                assert (stopped.finish, stopped.tokens) == (rule.name, watcher.verdict.token)
                assert stopped.decoded_tokens == watcher.verdict.step
    assert fired > 0


def test_what_cannot_ask_is_refused_by_name(qwen: Any, tokenizer: Any) -> None:
    confidence = lil.Confidence(cue=CUE, words=WORD)
    with pytest.raises(InvalidValue, match=r"confidence.*asks nothing"):
        lil.StopOn(confidence, tokenizer=tokenizer, model=qwen)
    for watching in ({"probes": [confidence]}, {"detectors": [lil.Either([confidence])]}):
        for refused in ({"speculate": 2}, {"prompts": [lil.Request([5, 6], forced=[7])]}):
            options = {"prompts": FIVE_PROMPTS, **watching, **refused}
            with pytest.raises(InvalidValue, match=r"(speculate|forced).*(confidence|either)"):
                lil.decode(qwen, tokenizer, options.pop("prompts"), **options)
    with pytest.raises(InvalidValue, match=r"cue.*no such words"):
        run(qwen, tokenizer, [replace(confidence, cue="no such words")])
    with pytest.raises(InvalidValue, match=r"words = .Wait"):
        run(qwen, tokenizer, [replace(confidence, words="Wait")])
    for wrong in ({"at": "line"}, {"at": 0}, {"words": " "}, {"cue": ""}, {"tokens": 0}):
        with pytest.raises(InvalidValue, match=f"{next(iter(wrong))} = "):
            lil.Confidence(**wrong)

"""Why a text parted: a planted fact is named, and weights are those of plain torch."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from sweeping import go

import lil
from attention import methods
from attention.contract import Backend, Choice, Full, Selecting
from experiments.cli import main
from experiments.grid import data, models
from experiments.grid.presets import load
from experiments.why import Replay, Watched, explained, parting
from lil import penalties
from tests.attention.zoo import animal, sliding_layers

TOKENS = 70


class ForgetfulLayer(Selecting):
    """Reads all but some positions."""

    def __init__(self, geometry, backend) -> None:
        super().__init__(geometry, backend)
        self.lost = torch.tensor(backend.lost)

    def choose(self, q, step) -> Choice:  # noqa: ARG002
        pages = torch.arange(step.longest).expand(step.rows, 1, -1)
        return Choice(pages.contiguous(), ~torch.isin(pages, self.lost))


@dataclass(frozen=True, kw_only=True)
class Forgetful(Backend):
    name: ClassVar[str] = "forgetful"
    source: ClassVar[str] = "a test"
    layer_class = ForgetfulLayer
    budget: int | None = None
    lost: tuple[int, ...] = ()

    @property
    def exact_until(self) -> float:
        return 0


@pytest.fixture(scope="module")
def reasoner() -> models.LoadedModel:
    return models.load(models.find("reasoner"), "float32", "cpu")


def prompts(reasoner: models.LoadedModel, count: int) -> list[tuple[int, ...]]:
    (problems,) = data.load_all(load("demo-small", {"limit": count})).values()
    return [tuple(item.prompt_ids(reasoner.tokenizer)) for item in problems.items]


def decoded(reasoner: models.LoadedModel, prompt: tuple[int, ...], backend: Backend) -> Any:
    (trace,) = lil.decode(
        reasoner.model,
        reasoner.tokenizer,
        [lil.Request(prompt)],
        backend=backend,
        max_new_tokens=TOKENS,
        token_bytes=reasoner.token_bytes,
    )
    return trace.new_ids


def test_a_fact_that_was_dropped_is_named_and_put_back(reasoner) -> None:
    """The first fact of a prompt without which the text is another."""
    (prompt,) = prompts(reasoner, 1)
    stops = [i for i, token in enumerate(prompt) if reasoner.token_bytes[token].strip() == b"."]
    full = decoded(reasoner, prompt, Full())
    for begin, end in itertools.pairwise(stops):
        fact = tuple(range(begin + 1, end + 1))
        backend = Forgetful(lost=fact)
        sparse = decoded(reasoner, prompt, backend)
        if parting(full, sparse):
            break
    result = explained(reasoner.model, backend, prompt, full, sparse, (), keys=(16,))
    assert result["reproduced"]
    weights = result["by_token"]
    assert set(sorted(range(len(weights)), key=lambda i: -weights[i])[: len(fact)]) == set(fact)
    assert result["put_back"][0]["healed"]
    assert result["margin_sparse"] < 0 < result["put_back"][0]["margin"]


def test_missed_weights_are_those_of_plain_torch(reasoner) -> None:
    """Softmax of q.k of transformers' own eager attention on the same tokens."""
    (prompt,) = prompts(reasoner, 1)
    full = decoded(reasoner, prompt, Full())
    lost = (3, 5, 8, len(prompt) + 2)
    backend = Forgetful(lost=lost)
    at = 20
    sparse = (*full[:at], full[at] + 1)
    result = explained(reasoner.model, backend, prompt, full, sparse, (), keys=())
    own = reasoner.model.config._attn_implementation
    reasoner.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = reasoner.model(torch.tensor([[*prompt, *full[:at]]]), output_attentions=True)
    finally:
        reasoner.model.set_attn_implementation(own)
    heads = reasoner.model.config.num_key_value_heads
    for got, weights in zip(result["by_head"], out.attentions, strict=True):
        last = weights[0, :, -1].view(heads, -1, weights.shape[-1]).mean(1)
        expected = torch.zeros_like(last)
        expected[:, lost] = last[:, lost]
        torch.testing.assert_close(torch.tensor(got), expected, atol=1e-5, rtol=1e-4)
        assert expected.sum() > 0


@pytest.mark.parametrize("name", ["h2o", "quest", "snapkv"])
def test_the_record_holds_what_the_method_computed(reasoner, name: str) -> None:
    """A swap of a key for itself changes nothing; a budget is kept where one comes in."""
    (prompt,) = prompts(reasoner, 1)
    full = decoded(reasoner, prompt, Full())
    backend = methods.get(name, budget=32)
    with Watched(inner=backend).on(reasoner.model) as cache:
        replay = Replay(reasoner.model, cache, prompt, full[:40])
        plain, looks, _ = replay.step()
        same, _, _ = replay.step([look.read for look in looks])
        torch.testing.assert_close(same, plain, atol=1e-3, rtol=1e-3)
        # The first four positions that were not read.
        other = [~x.read & ((~x.read).cumsum(-1) <= 4) for x in looks]
        changed, after, _ = replay.step(other)
        assert (changed - plain).abs().max() > 0.01
        # The first layer chose alike: as many are read as before.
        before, now = looks[0].read, after[0].read
        assert (now.sum(-1) == before.sum(-1)).all()
        assert ((now & ~before) == other[0]).all()
        assert now[:, -1].all()


@pytest.mark.parametrize("penalty", ["repetition", "lz"])
def test_a_step_is_replayed_with_the_penalties_of_its_run(reasoner, penalty: str) -> None:
    """The run's own choice comes out, which without its penalty is another."""
    (prompt,) = prompts(reasoner, 1)
    strength = {"repetition": {"penalty": 2.5}, "lz": {"alpha": 3.0}}[penalty]
    own = penalties.get(penalty, **strength)
    full, backend = decoded(reasoner, prompt, Full()), methods.get("h2o", budget=256)
    (trace,) = lil.decode(
        reasoner.model, reasoner.tokenizer, [lil.Request(prompt)], backend=backend,
        penalties=[own], max_new_tokens=TOKENS, token_bytes=reasoner.token_bytes,
    )  # fmt: skip
    texts = (prompt, full, trace.new_ids)
    result = explained(reasoner.model, backend, *texts, [own], keys=(1,))
    without = explained(reasoner.model, backend, *texts, [], keys=(1,))
    assert result["token"] > 0
    assert result["reproduced"]
    assert not without["reproduced"]


@pytest.mark.parametrize("method", ["h2o", "quest"])
@pytest.mark.parametrize("family", ["gemma3", "gpt_oss"])
def test_models_that_slide_in_some_layers(family: str, method: str) -> None:
    """Only layers that the budget binds leave keys out; the step is that of the method itself."""
    model = animal(family, torch.float32)
    params = {"budget": 16, "dense_layers": 0} | MORE[method]
    backend = methods.get(method, **params)
    prompt = tuple((21 * i + 3) % 50 + 3 for i in range(30))
    full, sparse = (greedy(model, prompt, method) for method in (Full(), backend))
    at = parting(full, sparse)
    assert at, "two texts that part behind the first token"
    result = explained(model, backend, prompt, full, sparse, (), keys=(4,))
    assert result["reproduced"]
    slides = sliding_layers(family)
    for layer, heads in enumerate(result["by_head"]):
        assert any(map(any, heads)) != (layer in slides), layer
    assert len(result["put_back"]) == 2


MORE: dict[str, dict[str, Any]] = {
    "h2o": {"gqa": "query_head"},
    "quest": {"gqa": "query_head", "page": 4},
}


@torch.no_grad()
def greedy(model: Any, prompt: tuple[int, ...], backend: Backend) -> tuple[int, ...]:
    """Forty tokens, one forward for each."""
    tokens: list[int] = []
    with backend.on(model) as cache:
        ids = list(prompt)
        while len(tokens) < 40:
            place = cache.columns + torch.arange(len(ids))[None]
            out = model(torch.tensor([ids]), position_ids=place, past_key_values=cache)
            ids = [int(out.logits[0, -1].argmax())]
            tokens += ids
    return tuple(tokens)


def test_bad_runs_are_refused_and_a_good_one_is_explained(tmp_path: Path, capsys) -> None:
    values = {"limit": 1, "backends": "h2o", "budgets": "32", "max_new_tokens": 60, "threads": 1}
    out = tmp_path / "out"
    go(load("demo-small", values), out)
    assert main(["why", str(out), "h2o", "--json", "--top", "3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reproduced"]
    assert len(result["texts"]) == 3
    assert [attempt["keys"] for attempt in result["put_back"]] == [1, 1, 4, 4, 16, 16]
    assert main(["why", str(out), "h2o"]) == 0
    assert "parts at token" in capsys.readouterr().out
    for words in (["full"], ["nothing"], ["h2o", "--keys", "x"], ["h2o", "--top", "0"]):
        assert main(["why", str(out), *words]) == 2
        assert capsys.readouterr().err.count("lil: error:") == 1

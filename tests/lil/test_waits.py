"""In a decode step on an accelerator nothing waits for the device, and traces stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penalty_cases import CASES
from penalty_cases import build as penalty
from tiny_models import SIZES, WORDS, Endings, asked, build_model
from transformers import Qwen3Config, Qwen3ForCausalLM

import attention
import lil
from lil.chopper import Classifier
from lil.decoding.loop import DecodeLoop
from tests.attention.examples import BACKENDS
from tests.sampling import some_slow
from tests.waits import Guard, WaitingError, watched

#: Ragged prompts and caps: rows end apart and are replaced, one when its prompt has been read.
PROMPTS = [[5, 6, 7], [9] * 12, [30], [1, 2, 3, 4, 5, 6, 7, 8]]
CAPS = [42, 7, 1, 30]
#: What is read is known on the device alone, or its shape wants to be.
TELLING = {
    i
    for i, b in enumerate(BACKENDS)
    if (b.name == "h2o" and b.params()["gqa"] == "query_head") or b.params().get("top_p")
}
CLASSIFIER = Classifier(torch.randn(32, generator=torch.Generator().manual_seed(5)), 0.4, -2, "t")
#: What stops a row, each with numbers at which it does.
DETECTORS: dict[str, lil.Detector] = {
    "guardian": lil.Guardian(f=22, rate=3.0),
    "cycle": lil.Cycle(max_period=9, min_tokens=4, repeats=2, outside=0),
    "budget": lil.Budget(23),
    "chopper": lil.Chopper(CLASSIFIER, short=3),
    "recurrence": lil.Recurrence(k=1, before=2, run=4, outside=0),
    "stall": lil.Stall(longest=5, before=1, drift=0.0, level=7.0),
    "margin": lil.Margin(below=0.9, end=WORDS[7]),
}
DETECTORS["either"] = lil.Either([DETECTORS["stall"], lil.Budget(60)])
DETECTORS["both"] = lil.Both([DETECTORS["margin"], DETECTORS["chopper"]])


def test_every_detector_is_watched() -> None:
    assert sorted(DETECTORS) == sorted(lil.detectors.names())


@pytest.fixture(scope="module")
def small() -> Any:
    """Two layers, so that quick tests stay quick."""
    torch.manual_seed(11)
    sizes = {**SIZES, "num_hidden_layers": 2}
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(torch.float64).eval()


def record(trace: lil.Trace) -> dict[str, Any]:
    """All a trace holds but seconds.

    What detectors made of hidden states is compared up to rounding: sums depend on how many rows a
    batch has, and one that has ended stays a step longer.
    """
    held = trace.to_dict()
    read = {name: near(held[name]) for name in ("signals", "evidence")}
    return held | read | untimed(trace)


def untimed(trace: lil.Trace) -> dict[str, Any]:
    """The fields that hold seconds, without them."""
    checks = [check._replace(seconds=None)._asdict() for check in trace.checks]
    return {"checks": checks, "prefill_sec": None, "decode_sec": None}


def near(value: Any, rel: float = 1e-9) -> Any:
    """The same with every float approximate."""
    if isinstance(value, float):
        return pytest.approx(value, rel=rel)
    if isinstance(value, dict):
        return {key: near(one, rel) for key, one in value.items()}
    return [near(one, rel) for one in value] if isinstance(value, list | tuple) else value


def both(model: Any, tokenizer: Any, **options: Any) -> tuple[list[lil.Trace], Guard]:
    """The traces of a CPU, which looks at every token at once; a watched decode gives the same."""
    given = {"batch_size": 2, "check_every": 10, "engine": "torch", "top_k": 40} | options
    rows = given.pop("rows", None) or asked(PROMPTS, max_new_tokens=CAPS)
    heard: list[list[tuple[int, int]]] = [[], []]

    def hearing(which: int) -> Any:
        return lambda index, token, _piece: heard[which].append((index, token))

    plain = lil.decode(model, tokenizer, rows, on_token=hearing(0), **given)
    with watched() as guard:
        late = lil.decode(model, tokenizer, rows, on_token=hearing(1), **given)
    for one, other in zip(late, plain, strict=True):
        assert one.to_dict() | untimed(one) == record(other)
    assert sorted(heard[0], key=lambda told: told[0]) == sorted(heard[1], key=lambda told: told[0])
    return plain, guard


@pytest.mark.parametrize("temperature", some_slow([0.0, 1.5], 1))
@pytest.mark.parametrize("backend", some_slow(BACKENDS, TELLING), ids=lambda b: b.name)
def test_no_backend_waits(backend, temperature, small, tokenizer):
    traces, guard = both(small, tokenizer, backend=backend, temperature=temperature)
    assert [trace.tokens for trace in traces] == CAPS
    assert guard.steps > 40


@pytest.mark.parametrize("backend", some_slow([BACKENDS[0], *(BACKENDS[i] for i in TELLING)], 1))
def test_a_row_that_ended_was_stepped_once_too_often(backend, small, tokenizer, monkeypatch):
    """Nothing of that step is kept, and its place goes to the next row."""
    rows = asked(PROMPTS, max_new_tokens=CAPS)
    free = lil.decode(small, tokenizer, rows, backend=backend, engine="torch", temperature=1.5)
    others = {token for trace in free[1:] for token in trace.new_ids}
    own = [i for i, token in enumerate(free[0].new_ids) if token not in others]
    monkeypatch.setattr(small.generation_config, "eos_token_id", free[0].new_ids[own[-1]])
    traces, guard = both(small, tokenizer, backend=backend, temperature=1.5, top_k=None)
    assert [trace.finish for trace in traces] == ["eos", "length", "length", "length"]
    assert guard.steps > 30


@pytest.mark.slow
@pytest.mark.parametrize("backend", [attention.Full(), attention.Quest(budget=16, page=4)])
def test_the_models_own_sliding_layers_do_not_wait(backend, tokenizer):
    both(build_model("sliding"), tokenizer, backend=backend)


@pytest.mark.parametrize("more", some_slow([{"pad_token_id": 9}, {"include_prompt": True}, {}], 1))
@pytest.mark.parametrize("cases", some_slow([[*CASES], *([one] for one in CASES)], 1))
def test_no_penalty_waits(cases, more, small, tokenizer):
    """A row's newest token is known on the device alone when its penalties are computed."""
    penalties = [penalty(case, **more) for case in cases]
    traces, guard = both(small, tokenizer, penalties=penalties)
    bare = lil.decode(small, tokenizer, asked(PROMPTS, max_new_tokens=CAPS), batch_size=2)
    assert [trace.new_ids for trace in traces] != [trace.new_ids for trace in bare]
    assert guard.steps > 40


@pytest.mark.parametrize("probed", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some_slow(DETECTORS, {3}))
def test_no_detector_waits(name, probed, small, tokenizer):
    """Watchers see tokens and states late, and stop where they would have stopped."""
    seen = {"probes": [DETECTORS["chopper"]]} if probed and name != "chopper" else {}
    options = {"penalties": [Endings()], "detectors": [DETECTORS[name]], **seen}
    rows = asked(PROMPTS, max_new_tokens=[63, 45, 1, 30])
    traces, guard = both(small, tokenizer, rows=rows, **options)
    assert name in {trace.finish for trace in traces}
    assert guard.steps > 40


@pytest.mark.slow
def test_given_tokens_do_not_wait(small, tokenizer):
    """Known first tokens, of which one row has all it may have."""
    plain, _ = both(small, tokenizer)
    forced = [trace.new_ids[:n] for trace, n in zip(plain, (12, 7, 0, 29), strict=True)]
    traces, _ = both(small, tokenizer, rows=asked(PROMPTS, max_new_tokens=CAPS, forced=forced))
    assert [trace.new_ids for trace in traces] == [trace.new_ids for trace in plain]


def test_a_cap_is_known_ahead(small, tokenizer):
    """No step is launched for rows that end with the tokens on their way."""
    with watched() as guard:
        lil.decode(small, tokenizer, [[5, 6], [7, 8]], max_new_tokens=9)
    assert guard.steps == 8


@pytest.mark.parametrize(
    ("action", "lag"), [("stop", 1), (lil.detectors.Answer(cue=" Anna", tokens=3), 0)]
)
def test_what_acts_looks_at_every_token(action, lag, small, tokenizer, monkeypatch):
    """Going back and giving tokens begin at the newest one."""
    loops: list[DecodeLoop] = []
    run = DecodeLoop.run
    monkeypatch.setattr(DecodeLoop, "run", lambda self: loops.append(self) or run(self))
    options = {"detectors": [lil.Budget(60, on_stop=action)], "max_new_tokens": 4}
    with watched():
        if lag:
            lil.decode(small, tokenizer, [[5]], **options)
        else:
            with pytest.raises(WaitingError, match="newest step"):
                lil.decode(small, tokenizer, [[5]], **options)
    assert [loop.lag for loop in loops] == [lag]


@pytest.mark.parametrize(
    "backend", some_slow(BACKENDS, {BACKENDS.index(attention.InfLLM(budget=16))})
)
def test_state_keeps_its_shapes_between_growth_points(backend, small, tokenizer):
    """Two rows for 45 steps: each state tensor grows once at most."""
    penalties = [penalty(case) for case in ("dry", "lz default", "no_repeat_ngram", "presence")]
    with watched() as guard:
        options = {"penalties": penalties, "backend": backend, "engine": "torch"}
        lil.decode(small, tokenizer, [[5] * 30, [6] * 9], max_new_tokens=45, **options)
    assert len(guard.shapes) > len(penalties) + 3
    assert {name: had for name, had in guard.shapes.items() if len(had) > 2} == {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_not_numbers_end_the_run_a_step_late(temperature, small, tokenizer):
    class Poison(type(penalty("frequency"))):  # type: ignore[misc]
        def apply(self, memory: Any, scores: torch.Tensor) -> torch.Tensor:
            late = memory.sum(1, keepdim=True) == 5
            return torch.where(late, torch.nan, super().apply(memory, scores))

    heard: list[int] = []
    options = {"penalties": [Poison()], "temperature": temperature, "max_new_tokens": 9}
    with watched() as guard, pytest.raises(FloatingPointError):
        lil.decode(small, tokenizer, [[5, 6]], on_token=lambda *told: heard.append(told), **options)
    assert (len(heard), guard.steps) == (5, 6)


def waiting() -> dict[str, Any]:
    x = torch.arange(6.0)
    mask = x > 2
    return {
        "item": lambda: x[0].item(),
        "bool": lambda: bool(mask.any()),
        "int": lambda: int(x.max()),
        "float": lambda: float(x[1]),
        "if": lambda: 1 if mask[0] else 2,
        "index of a list": lambda: [1, 2][x.long()[1]],
        "a slice": lambda: x[: x.long()[2]],
        "in": lambda: 3.0 in x,
        "tolist": lambda: x.tolist(),
        "numpy": lambda: x.numpy(),
        "array": lambda: __import__("numpy").asarray(x),
        "cpu": lambda: x.cpu(),
        "to": lambda: x.to("cpu"),
        "to a type too": lambda: x.to(device="cpu", dtype=torch.float64),
        "nonzero": lambda: x.nonzero(),
        "where": lambda: torch.where(mask),
        "masked_select": lambda: x.masked_select(mask),
        "boolean index": lambda: x[mask],
        "boolean assignment": lambda: x.__setitem__(mask, torch.zeros(3)),
        "unique": lambda: x.unique(),
        "isin": lambda: torch.isin(x, x),
        "repeat_interleave": lambda: x.repeat_interleave(x.long()),
        "equal": lambda: torch.equal(x, x),
        "allclose": lambda: torch.allclose(x, x),
        "pageable memory": lambda: torch.tensor([1, 2]),
        "pageable array": lambda: torch.as_tensor([1, 2]),
    }


@pytest.mark.parametrize("name", waiting())
def test_what_waits_is_seen(name):
    wait, guard = waiting()[name], Guard()
    wait()
    with guard.on(), pytest.raises(WaitingError):
        wait()
    with guard.on(), guard.looking_away():
        wait()


def test_what_does_not_wait_is_let_through():
    x, index = torch.arange(6.0), torch.tensor([1, 1])
    with Guard().on():
        x[index], x[2:4], x[None, ..., 0], x.repeat_interleave(2), x.clone().masked_fill_(x > 1, 0)
        torch.where(x > 1, x, 0), x.to(torch.float64), x.to(x.device), x.topk(2), x.argsort()
        torch.arange(3), torch.full((2,), 1.0), len(x), x.shape[0]

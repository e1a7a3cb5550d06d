"""SGLang's interface, driven by stand-ins; its own scheduler is in `engines/test_sglang_runs.py`.

What a request, its ends and its processors are is as in the wheel of 0.5.23. Where that wheel is
installed, its own class of processors is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import weakref
from array import array
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from acting_rows import PROMPTS
from tiny_models import build_tokenizer

import lil
from lil.penalties import DRYPenalty, PresenceWindowPenalty
from lil.serving import counters

CAP, EOS = 60, 0


class Finish:
    """An end of a request."""

    def __init__(self, *given: Any) -> None:
        self.given = given


class Aborted(Finish):
    """FINISH_ABORT(message, status_code, err_type)."""


class Matched(Finish):
    """FINISH_MATCHED_STR(matched)."""


class Base:
    """CustomLogitProcessor, where the wheel is not installed."""


def real_base() -> type:
    """The wheel's own class, whose file needs nothing of the engine."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return Base
    path = f"{found.submodule_search_locations[0]}/srt/sampling/custom_logit_processor.py"
    spec = importlib.util.spec_from_file_location("custom_logit_processor", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CustomLogitProcessor


@pytest.fixture
def schedule() -> SimpleNamespace:
    return SimpleNamespace(disable_overlap_schedule=True)


class Counted:
    """Prometheus' Counter, as far as it is used; all are kept by name."""

    made: ClassVar[dict[str, Counted]] = {}

    def __init__(self, name: str, described: str, labels: list[str]) -> None:
        assert described
        self.names, self.values = labels, Counter()
        self.made[name] = self

    def labels(self, *values: str) -> SimpleNamespace:
        assert len(values) == len(self.names)
        return SimpleNamespace(inc=lambda number=1: self.values.update({values: number}))

    def inc(self, number: int) -> None:
        self.values[()] += number


@pytest.fixture
def sglang(monkeypatch, schedule) -> ModuleType:
    """`lil.serving.sglang` as it is imported inside the engine."""
    counters._metrics.cache_clear()
    parts = {
        "prometheus_client": {"Counter": Counted},
        "sglang.srt.managers.schedule_batch": {
            "FINISH_ABORT": Aborted,
            "FINISH_MATCHED_STR": Matched,
        },
        "sglang.srt.runtime_context": {"get_schedule": lambda: schedule},
        "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": real_base()},
    }
    for name, members in parts.items():
        words = name.split(".")
        for i in range(1, len(words)):
            monkeypatch.setitem(sys.modules, ".".join(words[:i]), ModuleType(".".join(words[:i])))
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "lil.serving.sglang", raising=False)
    yield importlib.import_module("lil.serving.sglang")
    sys.modules.pop("lil.serving.sglang", None)
    counters._metrics.cache_clear()


class Request:
    """As much of the engine's `Req` as a processor may see."""

    tokenizer = build_tokenizer()

    def __init__(self, prompt: list[int], values: dict[str, Any], **params: Any) -> None:
        self.tokenizer.eos_token = "<eos>"
        self.origin_input_ids, self.output_ids = array("q", prompt), array("q")
        self.eos_token_ids = None
        self.decode_batch_idx = 0
        self.to_finish: Finish | None = None
        self.finished: Any = None
        given = {
            "stop_token_ids": None,
            "ignore_eos": False,
            "min_new_tokens": 0,
            "max_new_tokens": CAP,
        }
        # The reference is weak, so that a request dies with its last use.
        custom = {**values, "__req__": weakref.proxy(self)}
        self.sampling_params = SimpleNamespace(**given | params, custom_params=custom)

    def take(self, token: int) -> None:
        """A token has arrived on the host."""
        self.output_ids.append(token)
        if self.to_finish is not None:
            self.finished = self.to_finish
        elif token == EOS:
            self.finished = "eos"
        elif len(self.output_ids) >= self.sampling_params.max_new_tokens:
            self.finished = "length"


def serve(model, kind, requests, places=3, overlap=False, grammar=(), put_back=()) -> None:
    """An engine: so many requests at a time, a new processor a batch, rows selected, put back.

    Args:
        overlap: whether a token arrives on the host one step after the next has been chosen.
        grammar: steps at which it arrives before that all the same, as with a grammar in the batch.
        put_back: steps at which the first request loses its place, and is read anew.
    """
    waiting, running = list(requests), []
    flying: list[tuple[Request, int]] = []
    chosen: dict[int, list[int]] = {id(one): [] for one in requests}
    step = 0

    def arrive(tokens: list[tuple[Request, int]]) -> None:
        for one, token in tokens:
            if one.finished is None:
                one.take(token)

    while waiting or running:
        step += 1
        if step in put_back and running:
            lost = running.pop(0)
            waiting.insert(0, lost)
            flying = [(one, token) for one, token in flying if one is not lost]
            chosen[id(lost)] = list(lost.output_ids)
            lost.decode_batch_idx = -1
        for one in running:
            one.decode_batch_idx += 1
        while waiting and len(running) < places:
            waiting[0].decode_batch_idx = 0
            running.insert(0, waiting.pop(0))  # newcomers stand in front
        rows = []
        for one in running:
            ids = torch.tensor([[*one.origin_input_ids, *chosen[id(one)]]])
            with torch.inference_mode():
                rows.append(model(ids).logits[0, -1])
        logits = torch.stack(rows)
        if step in grammar:
            arrive(flying)
            flying = []
        mine = [i for i, one in enumerate(running) if len(one.sampling_params.custom_params) > 1]
        if mine:
            params = [running[i].sampling_params.custom_params for i in mine]
            logits[mine] = kind()(logits[mine], params)
        new = [(one, int(row.argmax())) for one, row in zip(running, logits, strict=True)]
        for one, token in new:
            chosen[id(one)].append(token)
        arrive(flying)
        flying = new
        if not overlap:
            arrive(flying)
            flying = []
        running = [one for one in running if one.finished is None]


PENALTIES = {
    "LZPenalty": [
        ({"lz_alpha": 0.9}, lil.LZPenalty(alpha=0.9)),
        ({"lz_alpha": 0.9, "lz_formula": "rate"}, lil.LZPenalty(alpha=0.9, formula="rate")),
        ({"lz_formula": "printed"}, lil.LZPenalty(formula="printed")),
    ],
    "DRYPenalty": [({"dry": "on"}, DRYPenalty())],
    "PresenceWindowPenalty": [
        (
            {"presence_window_window": 9, "presence_window_include_prompt": "on"},
            PresenceWindowPenalty(window=9, include_prompt=True),
        )
    ],
}


@pytest.mark.parametrize("name", PENALTIES)
def test_tokens_are_those_of_decode(sglang, qwen, eos, tokenizer, name):
    eos(EOS)
    given = [*PENALTIES[name], ({}, None)]
    prompts = PROMPTS * 2
    requests = [Request(p, given[i % len(given)][0]) for i, p in enumerate(prompts)]
    serve(qwen, getattr(sglang, name), requests)
    for i, one in enumerate(requests):
        penalty = given[i % len(given)][1]
        options = {"penalties": [] if penalty is None else [penalty], "max_new_tokens": CAP}
        (trace,) = lil.decode(qwen, tokenizer, [prompts[i]], **options)
        assert list(one.output_ids) == list(trace.new_ids)


def test_a_detector_ends_a_request_and_says_so(sglang, qwen):
    values = {"stop_on": "budget(tokens=20)"}
    requests = [Request(p, values if i % 2 else {}) for i, p in enumerate(PROMPTS)]
    serve(qwen, sglang.StopOn, requests)
    for i, one in enumerate(requests):
        if i % 2:
            assert (len(one.output_ids), one.output_ids[-1]) == (21, EOS)
            assert one.finished.given == ("lil: budget at token 20",)
        else:
            assert len(one.output_ids) == CAP
    told = {name: dict(counter.values) for name, counter in Counted.made.items()}
    assert told == {
        "lil_requests": {("stop_on",): 2},
        "lil_tokens": {("stop_on",): 42},
        "lil_verdicts": {("budget", "stop"): 2},
        "lil_tokens_below_cap": {(): 2 * (CAP - 20)},
    }


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("put_back", [(), (12, 22, 24), (30,)])
def test_an_answer_comes_behind_its_cue(sglang, schedule, qwen, overlap, put_back):
    schedule.disable_overlap_schedule = not overlap
    values = {"stop_on": "budget(tokens=20):answer", "stop_on_cue": " Anna has word7"}
    requests = [Request(p, {**values, "stop_on_tokens": 9}) for p in PROMPTS]
    serve(qwen, sglang.StopOn, requests, overlap=overlap, put_back=put_back)
    for one in requests:
        cue = 20 + overlap  # late by one, unless it was put back just then
        if put_back and list(one.output_ids[20:23]) == [2, 3, 14]:
            cue = 20
        assert list(one.output_ids[cue : cue + 3]) == [2, 3, 14]
        # The end of text is forced; where a token is late, the request ends before it arrives.
        assert len(one.output_ids) == cue + 3 + 9 + (not overlap)
        assert overlap or one.output_ids[-1] == EOS
        assert one.finished.given == ("lil: the answer has had its tokens",)


@pytest.mark.parametrize("grammar", [range(20, 22), range(21, 100), range(23, 24), range(1, 21)])
def test_a_cue_stays_whole_where_tokens_are_late_now_and_then(sglang, schedule, qwen, grammar):
    schedule.disable_overlap_schedule = False
    values = {"stop_on": "budget(tokens=20):answer", "stop_on_cue": " Anna has word7"}
    requests = [Request(p, {**values, "stop_on_tokens": 9}) for p in PROMPTS[:3]]
    serve(qwen, sglang.StopOn, requests, overlap=True, grammar=grammar)
    for one in requests:
        (cue,) = [at for at in (20, 21) if list(one.output_ids[at : at + 3]) == [2, 3, 14]]
        assert len(one.output_ids) - (cue + 3 + 9) in (0, 1)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("LZPenalty", {"lz_alhpa": 1}, "did you mean 'lz_alpha'"),
        ("StopOn", {"stop_on": "guardain"}, "did you mean 'guardian'"),
        ("StopOn", {"stop_on": "os:system"}, "'os:system': expected one of both, budget"),
        ("StopOn", {"stop_on": "cycle:answer", "stop_on_cue": "answer!"}, "cue"),
    ],
)
def test_a_wrong_value_ends_its_request_alone(sglang, qwen, kind, values, message):
    requests = [Request(p, values if i == 1 else {}) for i, p in enumerate(PROMPTS)]
    serve(qwen, getattr(sglang, kind), requests)
    assert [len(one.output_ids) for one in requests] == [CAP, 1, CAP, CAP]
    assert message in requests[1].finished.given[0]
    assert requests[1].finished.given[1:] == (400, "BadRequestError")


def test_a_request_without_an_end_of_text_is_ended_all_the_same(sglang, qwen):
    values = {"stop_on": "budget(tokens=20)"}
    (one,) = requests = [Request(PROMPTS[0], values, ignore_eos=True)]
    serve(qwen, sglang.StopOn, requests)
    assert len(one.output_ids) == 21
    assert one.finished.given == ("lil: budget at token 20",)


def test_a_grammar_decides_alone(sglang, qwen):
    (one,) = requests = [Request(PROMPTS[0], {"stop_on": "cycle"})]
    one.grammar = object()
    serve(qwen, sglang.StopOn, requests)
    assert "a grammar decides" in one.finished.given[0]


def test_penalties_are_refused_where_the_newest_token_is_not_known(sglang, schedule, qwen):
    schedule.disable_overlap_schedule = False
    (one,) = requests = [Request(PROMPTS[0], {"lz": "on"})]
    serve(qwen, sglang.LZPenalty, requests, overlap=True)
    assert "--disable-overlap-schedule" in one.finished.given[0]


def test_drafts_are_refused(sglang):
    one = Request(PROMPTS[0], {"lz": "on"})
    params = [one.sampling_params.custom_params] * 2
    sglang.LZPenalty()(torch.zeros(2, 60), params)
    assert "no drafts" in one.to_finish.given[0]


def test_what_is_remembered_dies_with_the_request(sglang):
    one = Request(PROMPTS[0], {"stop_on": "cycle"})
    sglang.StopOn()(torch.zeros(1, 60), [one.sampling_params.custom_params])
    there = weakref.ref(one._lil_stop_on)
    assert there() is not None
    del one
    assert there() is None

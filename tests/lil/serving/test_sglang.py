"""What SGLang's own scheduler does not show in `engines/test_sglang_runs.py`, by stand-ins.

A request, its ends and its processors are as in the wheel of 0.5.23.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from array import array
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from acting_rows import PROMPTS
from tiny_models import build_tokenizer
from transformers import AutoTokenizer

from experiments.reasoner import checkpoint_path
from lil.penalties import NoWaitPenalty
from lil.token_table import token_bytes

CAP, EOS = 40, 0
CUE = {"stop_on_cue": " Anna has word7"}


class Finish:
    """FINISH_ABORT(message, status_code, err_type) and FINISH_MATCHED_STR(matched)."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


@pytest.fixture
def schedule() -> SimpleNamespace:
    return SimpleNamespace(disable_overlap_schedule=True)


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch, schedule: Any) -> Iterator[ModuleType]:
    """`lil.serving.sglang` as it is imported inside the engine."""
    parts: dict[str, dict[str, Any]] = {
        "sglang.srt.managers.schedule_batch": {
            "FINISH_ABORT": Finish,
            "FINISH_MATCHED_STR": Finish,
        },
        "sglang.srt.runtime_context": {"get_schedule": lambda: schedule},
        "sglang.srt.sampling.custom_logit_processor": {
            "CustomLogitProcessor": type("CustomLogitProcessor", (), {})
        },
    }
    for name, members in parts.items():
        words = name.split(".")
        for i in range(1, len(words)):
            package = ".".join(words[:i])
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "lil.serving.sglang", raising=False)
    yield importlib.import_module("lil.serving.sglang")
    sys.modules.pop("lil.serving.sglang", None)


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
        defaults = {
            "stop_token_ids": None,
            "ignore_eos": False,
            "min_new_tokens": 0,
            "max_new_tokens": CAP,
        }
        # The reference is weak, so that a request dies with its last use.
        custom = {**values, "__req__": weakref.proxy(self)}
        self.sampling_params = SimpleNamespace(**defaults | params, custom_params=custom)

    def take(self, token: int) -> None:
        """A token has arrived on the host."""
        self.output_ids.append(token)
        if self.to_finish is not None:
            self.finished = self.to_finish
        elif token == EOS:
            self.finished = "eos"
        elif len(self.output_ids) >= self.sampling_params.max_new_tokens:
            self.finished = "length"


def serve(
    model: Any, kind: Any, requests: list[Request], overlap: bool = False, put_back: Any = ()
) -> None:
    """An engine of three places: a new processor a batch, rows selected, requests put back.

    Args:
        overlap: whether a token arrives on the host one step after the next has been chosen.
        put_back: steps at which the first request loses its place, and is read anew.
    """
    waiting, running = list(requests), list[Request]()
    flying: list[tuple[Request, int]] = []
    chosen: dict[int, list[int]] = {id(request): [] for request in requests}
    step = 0
    while waiting or running:
        step += 1
        if step in put_back and running:
            lost = running.pop(0)
            waiting.insert(0, lost)
            flying = [(request, token) for request, token in flying if request is not lost]
            chosen[id(lost)] = list(lost.output_ids)
            lost.decode_batch_idx = -1
        for request in running:
            request.decode_batch_idx += 1
        while waiting and len(running) < 3:
            waiting[0].decode_batch_idx = 0
            running.insert(0, waiting.pop(0))  # newcomers stand in front
        rows = []
        for request in running:
            ids = torch.tensor([[*request.origin_input_ids, *chosen[id(request)]]])
            with torch.inference_mode():
                rows.append(model(ids).logits[0, -1])
        logits = torch.stack(rows)
        some = [i for i, r in enumerate(running) if len(r.sampling_params.custom_params) > 1]
        if some:
            params = [running[i].sampling_params.custom_params for i in some]
            logits[some] = kind()(logits[some], params)
        new = [(request, int(row.argmax())) for request, row in zip(running, logits, strict=True)]
        for request, token in new:
            chosen[id(request)].append(token)
        for request, token in flying if overlap else new:
            if request.finished is None:
                request.take(token)
        flying = new
        running = [request for request in running if request.finished is None]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("put_back", [(), (12, 22, 24)])
def test_an_answer_comes_behind_its_cue(
    sglang: Any, schedule: Any, qwen: Any, overlap: bool, put_back: Any
) -> None:
    schedule.disable_overlap_schedule = not overlap
    values = {"stop_on": "budget(tokens=20):answer", "stop_on_tokens": 9, **CUE}
    requests = [Request(p, values) for p in PROMPTS]
    serve(qwen, sglang.StopOn, requests, overlap=overlap, put_back=put_back)
    for request in requests:
        cue = 20 + overlap  # late by one, unless it was put back just then
        if put_back and list(request.output_ids[20:23]) == [2, 3, 14]:
            cue = 20
        assert list(request.output_ids[cue : cue + 3]) == [2, 3, 14]
        # The end of text is forced; where a token is late, the request ends before it arrives.
        assert len(request.output_ids) == cue + 3 + 9 + (not overlap)
        assert request.finished.arguments == ("lil: the answer has had its tokens",)


def test_what_cannot_be_served_is_refused(sglang: Any, schedule: Any) -> None:
    """A grammar beside a detector, drafts, and penalties where the newest token is not known."""

    def refusal(kind: Any, request: Request, rows: int = 1) -> str:
        kind()(torch.zeros(rows, 60), [request.sampling_params.custom_params] * rows)
        assert request.to_finish is not None
        return str(request.to_finish.arguments[0])

    request = Request(PROMPTS[0], {"stop_on": "cycle"})
    request.grammar = object()  # type: ignore[attr-defined]
    assert "a grammar decides" in refusal(sglang.StopOn, request)
    nobody = refusal(sglang.NoWaitPenalty, Request(PROMPTS[0], {"nowait": "on"}))
    assert "words with which some token of the model begins" in nobody
    assert "no drafts" in refusal(sglang.LZPenalty, Request(PROMPTS[0], {"lz": "on"}), 2)
    schedule.disable_overlap_schedule = False
    late = refusal(sglang.LZPenalty, Request(PROMPTS[0], {"lz": "on"}))
    assert "--disable-overlap-schedule" in late


def test_words_are_those_of_the_served_tokenizer(sglang: Any) -> None:
    request = Request(PROMPTS[0], {"nowait": "on"})
    request.tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    logits = torch.zeros(1, 600)
    sglang.NoWaitPenalty()(logits, [request.sampling_params.custom_params])
    known = NoWaitPenalty().with_tokens(token_bytes(request.tokenizer))
    assert logits[0].isinf().nonzero()[:, 0].tolist() == list(known.tokens)


def test_state_dies_with_the_request(sglang: Any) -> None:
    request = Request(PROMPTS[0], {"stop_on": "cycle"})
    sglang.StopOn()(torch.zeros(1, 60), [request.sampling_params.custom_params])
    state = weakref.ref(request._lil_stop_on)  # type: ignore[attr-defined]
    assert state() is not None
    del request
    assert state() is None

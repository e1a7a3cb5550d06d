"""What a vLLM server and its requests ask for is accepted or refused, never void."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import build_tokenizer

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from attention.errors import InvalidValue
from lil.serving.vllm import LZPenalty, StopOn, admission
from lil.serving.vllm.admission import RequestCheck, ServerOptions
from lil.serving.vllm.sparse.processor import Attention

WORKER = "lil.serving.vllm.sparse.worker.CPUWorker"
SPARSE = {"attention": "quest(budget=64)"}


def config(values: Any, worker: str = WORKER) -> Any:
    """As much of an engine's as is looked at."""
    names = ["lil.serving.vllm:LZPenalty", "lil.serving.vllm:StopOn"]
    return SimpleNamespace(
        additional_config={"lil": values},
        speculative_config=None,
        parallel_config=SimpleNamespace(worker_cls=worker),
        model_config=SimpleNamespace(logits_processors=names),
    )


@pytest.mark.parametrize(
    ("values", "worker", "message"),
    [
        (SPARSE, "auto", "--worker-cls lil.serving.vllm.sparse."),
        ({"atention": "window(budget=64)"}, WORKER, "did you mean 'attention'"),
        ("quest", WORKER, "a table of values"),
    ],
)
def test_values_of_a_server_that_nobody_reads_are_refused(
    values: Any, worker: str, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        Attention(config(values, worker), "cpu", False)
    Attention(config({**SPARSE, "lz": "on"}), "cpu", False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alpha": -1}, "alpha"),
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on_every": 0}, "stop_on_every"),
        ({"stop_on_cue": "answer!"}, "cue"),
    ],
)
def test_processors_of_a_server_with_wrong_values_do_not_start(
    tmp_path: Any, values: Any, message: str
) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    settings = config({"stop_on_cue": " Anna has word7"})
    settings.model_config = SimpleNamespace(
        tokenizer=tmp_path, tokenizer_revision=None, trust_remote_code=False, max_model_len=200
    )
    states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=torch.zeros(1)))
    kind = LZPenalty if "lz_alpha" in values else StopOn
    for arguments in (("cpu", False), (states,)):  # of V1 and of V2
        kind(settings, *arguments)
    settings.additional_config = {"lil": values}
    with pytest.raises(InvalidValue, match=message):
        kind(settings, "cpu", False)
    settings.speculative_config = SimpleNamespace(method="ngram")
    with pytest.raises(InvalidValue, match="speculative"):
        kind(settings, states)


@pytest.mark.parametrize(
    ("server", "values", "beams", "message"),
    [
        ({}, {"attention": "ful"}, False, "did you mean 'full'"),
        ({}, {"dry": "on"}, False, "started without lil.serving.vllm:DRYPenalty"),
        (SPARSE, {}, True, "read in full"),
        (SPARSE, {"attention": "full"}, True, None),
        (SPARSE, {}, False, None),
        ({}, {"lz_alpha": 3}, True, "or lz = 'off'"),
        ({"lz": "on"}, {}, True, "or lz = 'off'"),
        ({"lz": "on"}, {"lz": "off"}, True, None),
        ({"stop_on": "cycle"}, {}, True, "or stop_on = 'off'"),
        ({"stop_on": "cycle"}, {"stop_on": "off", "session_id": "a"}, True, None),
    ],
)
def test_what_would_be_void_is_refused(
    server: Any, values: Any, beams: bool, message: str | None
) -> None:
    body, options = {"vllm_xargs": values, "use_beam_search": beams}, ServerOptions(config(server))
    if message is None:
        options.accept(body)
        return
    with pytest.raises(InvalidValue, match=message):
        options.accept(body)


def answered(*parts: bytes) -> tuple[list[bytes], list[Any]]:
    """What the server behind the check receives of a body, and what the check answers itself."""
    received: list[bytes] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, send
        while (message := await receive())["more_body"]:
            received.append(message["body"])

    messages = iter([*({"type": "http.request", "body": part, "more_body": True} for part in parts),
                     {"type": "http.request", "body": b"", "more_body": False}])  # fmt: skip

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    state = SimpleNamespace(vllm_config=config({}))
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    check = RequestCheck(app)
    asyncio.run(check({**scope, "app": SimpleNamespace(state=state)}, receive, send))
    return received, sent


def test_bodies_are_passed_on_as_they_came() -> None:
    """Deeply nested JSON too, of which Python's reader raises RecursionError."""
    for parts in ((b'{"a": 1}',), (b"{", b"}"), (b"no json",), (b"[" * 100_000,)):
        assert answered(*parts) == (list(parts), [])
    _, (start, body) = answered(b'{"vllm_xargs": {"stop-on": "cycle"}}')
    assert start["status"] == 400
    assert json.loads(body["body"])["error"]["param"] == "value"


def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LARGEST_BODY", 100)
    received, (start, body) = answered(*[b"x" * 30] * 10)
    assert (received, start["status"]) == ([], 413)
    assert "at most 100 bytes" in json.loads(body["body"])["error"]["message"]

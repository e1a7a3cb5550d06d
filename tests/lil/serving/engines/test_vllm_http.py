"""A server with our processors, the middleware and sparse attention, over HTTP.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from engine_runs import CHECKS, LONG, PROCESSORS, PROMPTS, SHORT, WORKER, decoded
from test_vllm_sparse import POLICIES
from vllm_server import Server

import attention
import lil
from lil.detectors import Answer

pytestmark = pytest.mark.slow

N = 64 if LONG else 24
PENALTY, WATCH = lil.LZPenalty(alpha=1.5), lil.Budget(tokens=100, on_stop=Answer())
#: Values of a request, and the same of `lil.decode`; the server ends requests at 100 tokens.
KINDS: list[tuple[Any, dict[str, Any]]] = [
    ({"stop_on": "off"}, {}),
    ({"stop_on": "off", "attention": "full"}, {"backend": attention.Full()}),
    ({"stop_on": "off", "lz_alpha": 1.5}, {"penalties": [PENALTY]}),
    (None, {"detectors": [WATCH]}),
]


@pytest.fixture(scope="module", params=POLICIES if LONG else ["quest"])
def server(
    request: Any, reasoner: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, list[list[int]]]]:
    """A server, and what it is asked by `lil.decode`, before there is one to take the cores."""
    backend = attention.get(POLICIES[request.param])
    expected: list[Any] = [None] * N
    for first, (_, options) in enumerate(KINDS):
        options = {"max_new_tokens": SHORT, "backend": backend} | options
        expected[first::4] = decoded(reasoner, PROMPTS[first:N:4], **options)
    folder = tmp_path_factory.mktemp("server")
    values = {"attention": POLICIES[request.param], "stop_on": "budget(tokens=100):answer"}
    flags = ["--worker-cls", WORKER, "--block-size", "32"]
    flags += ["--logits-processors", *[name for name in PROCESSORS if "Presence" not in name]]
    flags += [CHECKS, "--additional-config", json.dumps({"lil": values})]
    flags += ["--middleware", "lil.serving.vllm.admission.RequestCheck"]
    process = Server(folder, *flags)
    yield process, expected
    process.stop()


def test_many_over_http_at_once(server: Any) -> None:
    """More than there are places for, each kind side by side."""
    process, expected = server

    def complete(at: int) -> list[int]:
        more = {"max_tokens": SHORT, "return_token_ids": True}
        status, answer = process.complete(PROMPTS[at], KINDS[at % 4][0], **more)
        assert status == 200
        ids: list[int] = answer["choices"][0]["token_ids"]
        return ids

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(complete, range(N))) == expected
    assert {line["detector"] for line in process.logged("ended by a detector")} == {"budget"}
    # What the last requests read is written in the step after them.
    for _ in range(2):
        assert process.complete(PROMPTS[0], max_tokens=2)[0] == 200
    reads = process.logged("keys read")
    assert len(reads) >= N
    assert any(line["keys_read"] == line["keys_of_full"] for line in reads)
    assert any(line["keys_read"] < line["keys_of_full"] for line in reads)


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ({"lz_alhpa": 0.4}, {}, "did you mean 'lz_alpha'"),
        ({"presence_window": "on"}, {}, "started without lil.serving.vllm:PresenceWindowPenalty"),
        ({"stop_on_token": 3}, {}, "stop_token_ids"),
        ({"stop_on": "cycle"}, {"structured_outputs": {"regex": "[a-z ]{9}"}}, "a grammar decides"),
        ({"session_id": "mine"}, {"ignore_eos": True}, None),
        ({"lz_alpha": 3}, {"structured_outputs": {"regex": "[a-z ]{9}"}}, None),
    ],
)
def test_values_over_http(server: Any, values: Any, more: Any, message: str | None) -> None:
    status, answer = server[0].complete(PROMPTS[0], values, max_tokens=3, **more)
    assert status == (200 if message is None else 400)
    assert message is None or message in answer["error"]["message"]


def test_bodies_of_all_kinds_are_passed_on(server: Any) -> None:
    for body in ("no json", [1], {"model": "reasoner"}):
        assert server[0].ask("/v1/completions", body)[0] == 400
    status, answer = server[0].ask("/tokenize", {"model": "reasoner", "prompt": PROMPTS[0]})
    assert status == 200
    assert answer["count"] > 3

"""A server with our processors, over HTTP.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

from vllm_runs import PROMPTS, SHORT, ours
from vllm_server import Server

import lil
from lil.detectors import Answer

pytestmark = pytest.mark.slow

FORMULAS = ["derived", "printed", "rate", None]


@pytest.fixture(scope="module")
def decoded(reasoner: Any) -> dict[Any, Any]:
    """What a server is asked, by `lil.decode`: before there is one, which would take the cores."""
    one = PROMPTS[2:3]
    (alone,) = ours(reasoner, one)
    (penalised,) = ours(reasoner, one, penalties=[lil.LZPenalty(alpha=0.4)])
    (ended,) = ours(reasoner, one, detectors=[lil.Budget(tokens=200, on_stop=Answer())])
    assert len(alone) > 250
    found: dict[Any, Any] = {
        "alone": text(reasoner, alone),
        "penalised": text(reasoner, penalised),
        "ended": text(reasoner, ended),
    }
    plain = ours(reasoner, PROMPTS, max_new_tokens=SHORT)
    changed = 0
    for first, formula in enumerate(FORMULAS):
        found[formula] = plain[first::4]
        if formula is not None:
            penalties = [lil.LZPenalty(alpha=1.5, formula=formula)]
            prompts = PROMPTS[first::4]
            found[formula] = ours(reasoner, prompts, penalties=penalties, max_new_tokens=SHORT)
        changed += sum(a != b for a, b in zip(found[formula], plain[first::4], strict=True))
    assert changed > 24  # or there would be nothing to see
    return found


@pytest.fixture(scope="module")
def server(decoded: dict[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that ends every request at 200 tokens, unless that says otherwise."""
    del decoded
    folder = tmp_path_factory.mktemp("server")
    names = [f"lil.serving.vllm:{name}" for name in ("LZPenalty", "DRYPenalty", "StopOn")]
    values = {"stop_on": "budget(tokens=200):answer", "stop_on_file": str(folder / "told.jsonl")}
    more = json.dumps({"lil": values})
    check = ("--middleware", "lil.serving.vllm.admission.RequestCheck")
    flags = ("--logits-processors", *names, "--additional-config", more, *check)
    (folder / "counted").mkdir()
    one = Server(folder, *flags, shared=folder / "counted")
    yield one
    one.stop()


def text(reasoner: Any, ids: list[int]) -> str:
    decoded: str = reasoner[1].decode(ids, skip_special_tokens=True)
    return decoded


def test_over_http(server, decoded):
    status, answer = server.complete(PROMPTS[2], {"stop_on": "off"})
    assert (status, answer["choices"][0]["text"]) == (200, decoded["alone"])
    status, answer = server.complete(PROMPTS[2], {"stop_on": "off", "lz_alpha": 0.4})
    assert (status, answer["choices"][0]["text"]) == (200, decoded["penalised"])
    status, answer = server.complete(PROMPTS[2])
    assert (status, answer["choices"][0]["text"]) == (200, decoded["ended"])
    lines = (server.log.parent / "told.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["detector"] == "budget"
    many = {"max_tokens": 5, "n": 3, "temperature": 1}
    status, answer = server.complete(PROMPTS[2], {"stop_on": "off"}, **many)
    assert (status, len(answer["choices"])) == (200, 3)


def test_sixty_four_over_http_at_once(server, decoded):
    """More than there are places for: each formula, and requests without, side by side."""
    values = [
        {"stop_on": "off"} | ({} if one is None else {"lz_alpha": 1.5, "lz_formula": one})
        for one in FORMULAS
    ]

    def complete(at: int) -> list[int]:
        more = {"max_tokens": SHORT, "return_token_ids": True}
        status, answer = server.complete(PROMPTS[at], values[at % 4], **more)
        assert status == 200
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(complete, range(64)))
    assert found == [decoded[FORMULAS[at % 4]][at // 4] for at in range(64)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lz_alhpa": 0.4}, "did you mean 'lz_alpha'"),
        ({"lz_alpha": 1e300}, "lz_alpha|alpha"),
        ({"LZ": "on"}, "'LZ': expected lz: another spelling"),
        ({"stop-on": "cycle"}, "did you mean 'stop_on'"),
        ({"presence_window": "on"}, "started without lil.serving.vllm:PresenceWindowPenalty"),
        ({"stop_on": "guardain"}, "did you mean 'guardian'"),
        ({"stop_on": "cycle(self=1)"}, "a parameter of cycle"),
        ({"stop_on": "/etc/passwd.json"}, "files are for who starts the server"),
        ({"stop_on_token": 3}, "stop_token_ids"),
    ],
)
def test_wrong_values_over_http(server, values, message):
    status, answer = server.complete(PROMPTS[0], values)
    assert status == 400
    assert message.split("|")[-1] in answer["error"]["message"]
    assert server.complete(PROMPTS[0], {"stop_on": "off"}, max_tokens=3)[0] == 200


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({"ignore_eos": True, "max_tokens": 300}, 300),
        ({"structured_outputs": {"regex": "[a-z ]{2000}"}, "max_tokens": 220}, 220),
        ({"min_tokens": 590}, 590),
        ({"prompt_logprobs": 1, "logprobs": 2, "max_tokens": 30}, 30),
    ],
)
def test_the_servers_default_leaves_alone_what_it_cannot_end(server, more, tokens):
    status, answer = server.complete(PROMPTS[2], **more)
    assert status == 200
    assert answer["usage"]["completion_tokens"] >= tokens
    assert server.complete(PROMPTS[0], max_tokens=3)[0] == 200


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"stop_on": "off", "lz_alpha": 3},
            "= True: expected false, or lz = 'off'",
        ),
        ({"stop_on": "budget(tokens=5)"}, "or stop_on = 'off'"),
        ({}, "or stop_on = 'off'"),  # the server's own
        (None, "or stop_on = 'off'"),
        ({"stop_on": "off", "dry_base": -1}, "base"),
        ({"stop_on": "off", "lz": "off"}, None),
    ],
)
def test_beams_are_not_searched_as_if_nothing_had_been_asked_for(server, values, message):
    status, answer = server.complete(PROMPTS[0], values, use_beam_search=True, n=2, max_tokens=4)
    assert status == (200 if message is None else 400)
    assert message is None or message in answer["error"]["message"]


PENALISED = [
    {"lz_alpha": 3, "lz_buffer": 4},
    {"lz_alpha": 3, "lz_buffer": 4, "lz_formula": "printed"},
    {"lz_alpha": 3, "lz_buffer": 4, "lz_formula": "rate"},
    {"dry_multiplier": 5},
]


@pytest.mark.parametrize("values", PENALISED)
def test_a_grammar_decides_among_penalised_tokens(server, values):
    """Of a grammar whose words the model's vocabulary has."""
    told = []
    for more in {}, values:
        asked = {"structured_outputs": {"regex": "[a-z ]{150}"}, "max_tokens": 100}
        status, answer = server.complete(PROMPTS[0], {"stop_on": "off", **more}, **asked)
        assert status == 200
        told.append(answer["choices"][0]["text"])
        assert re.fullmatch("[a-z ]{1,150}", told[-1])
    assert told[0] != told[1]
    status, answer = server.complete(PROMPTS[0], {"stop_on": "cycle"}, **asked)
    assert status == 400
    assert "a grammar decides" in answer["error"]["message"]


def test_what_others_send_passes(server):
    for body, status in ("no json", 400), ([1], 400), ({"model": "reasoner"}, 400):
        assert server.ask("/v1/completions", body)[0] == status
    assert server.complete(PROMPTS[0], {"session_id": "one"}, max_tokens=3)[0] == 200
    status, answer = server.ask("/tokenize", {"model": "reasoner", "prompt": PROMPTS[0]})
    assert status == 200
    assert answer["count"] > 3


def test_what_was_done_is_counted_beside_the_engines_own(server):
    def more() -> dict[str, float]:
        """What is counted anew; a request is counted when its engine has taken the next step."""
        server.complete(PROMPTS[0], {"stop_on": "off"}, max_tokens=3)
        now = server.counted()
        grown = {name: value - before.get(name, 0) for name, value in now.items()}
        return {name: value for name, value in grown.items() if value}

    before: dict[str, float] = {}
    before = more()
    values = {"stop_on": "budget(tokens=20)", "lz": "on"}
    status, answer = server.complete(PROMPTS[2], values, max_tokens=60)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 21)
    assert more() == {
        'lil_requests_total{what="lz"}': 1,
        'lil_requests_total{what="stop_on"}': 1,
        'lil_tokens_total{what="lz"}': 21,
        'lil_tokens_total{what="stop_on"}': 21,
        'lil_verdicts_total{detector="budget",then="stop"}': 1,
        "lil_tokens_below_cap_total": 40,
    }

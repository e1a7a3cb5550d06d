"""llama.cpp as a peer, by the binding xllamacpp, in an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

from peers.piped import Piped
from peers.work import PeerError, Run, Work

#: Where `scripts/llama_env` puts it.
PLACE = Path(__file__).parents[3] / ".venv-llama" / "bin" / "python"
WORKER = Path(__file__).with_name("llama_worker.py")


class Llama(Piped):
    """llama.cpp's server, in its process, with a GGUF file and as many places as prompts.

    Args:
        file: GGUF.
        work: the prompts, all of them.

    Raises:
        PeerError: it does not start.
    """

    def __init__(self, file: Path, work: Work) -> None:
        if not PLACE.is_file():
            raise PeerError("not installed; scripts/llama_env installs it")
        self.work = work
        first = {
            "file": str(file),
            "rows": len(work.prompts),
            "tokens": max(map(len, work.prompts)) + work.max_new_tokens + 8,
            "threads": work.threads,
        }
        super().__init__(PLACE, WORKER, dict(os.environ), first)

    def __call__(self, limit: int) -> Run:
        """Generate `limit` tokens of each prompt, ends or not; only their number is known.

        Raises:
            PeerError: its process ended.
        """
        return self.run(self.work.prompts, limit, endless=True)

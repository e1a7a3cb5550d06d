"""What the README's lines about a model of others take, from an empty folder and an empty cache.

    python scripts/measuring/cold_start.py

Nothing that was fetched, converted or compiled before is used, pip's own cache neither. One JSON
document: seconds and the memory of the largest process, for each line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.bench import conditions

ROOT = Path(__file__).parents[3]


def lines() -> list[str]:
    """The README's commands with a model of others, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if "real_models" in line]


def main() -> int:
    """The document; the exit code of the first line that fails."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "scripts").symlink_to(ROOT / "scripts")
        environment = {
            **os.environ,
            "LIL_CACHE": str(Path(folder, "cache")),
            "PIP_NO_CACHE_DIR": "1",
            "PYTHON": sys.executable,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for line in lines():
            started = time.monotonic()
            done = subprocess.run(
                ["bash", "-ec", line], cwd=folder, env=environment, stdout=sys.stderr, check=False
            )
            if done.returncode:
                return done.returncode
            # Of the largest child so far: the lines come in the order of what they need.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            seconds = time.monotonic() - started
            found.append({"command": line, "seconds": round(seconds, 1), "peak_mb": round(peak)})
    print(json.dumps({"conditions": conditions(), "lines": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

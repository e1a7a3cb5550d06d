"""Count lines of Python, words of docs and bytes of the tree against the budgets of pyproject.toml.

    python scripts/checks/budget.py

Lines are those that `cat` prints. The exit code is 1 where one is beyond its budget.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOG = "docs/dev/log.md"


def main() -> int:
    """Print each budget and what is used of it."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lil"]["budget"]
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    files = [name for name in listed if name and (ROOT / name).is_file()]
    pages = [name for name in files if name.startswith("docs/") and name.endswith(".md")]
    used = {
        f"lines of {folder}": sum(
            (ROOT / name).read_bytes().count(b"\n")
            for name in files
            if name.startswith(f"{folder}/") and name.endswith(".py")
        )
        for folder in ("attention", "lil", "experiments", "scripts", "tests")
    }
    used["pages of docs"] = len(pages)
    texts = [name for name in [*pages, "README.md"] if name != LOG]
    used["words of docs"] = sum(len((ROOT / name).read_text().split()) for name in texts)
    used["words of the log"] = len((ROOT / LOG).read_text().split())
    used["megabytes"] = -(-sum((ROOT / name).stat().st_size for name in files) // 10**6)
    over = 0
    for name, number in used.items():
        most = budget[name]
        over += number > most
        print(f"{name:20} {number:7,} of {most:7,}{'  OVER' if number > most else ''}")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())

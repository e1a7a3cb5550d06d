"""Engines that run as programs of their own: what is asked and answered goes through JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def answered(name: str, asked: Any, **environment: str) -> Any:
    """What a program of this folder answers; a failed assertion with its errors if it fails."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)

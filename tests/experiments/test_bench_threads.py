"""`lil bench --threads`."""

from __future__ import annotations

import json

import pytest
import torch

from experiments.cli import main

SIZES = "--heads 4 --kv-heads 2 --head-size 8 --batch 2 --context 130 --repeats 2"


def test_threads_are_those_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    other = 1 if before > 1 else 2
    try:
        command = ["bench", "window", "--budget", "32", *SIZES.split()]
        assert main([*command, "--threads", str(other), "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["threads"] == other
        assert main([*command, "--threads", "-1"]) == 2
        assert "threads = -1: expected a whole number from 1" in capfd.readouterr().err
    finally:
        torch.set_num_threads(before)

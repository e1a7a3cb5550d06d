"""The benchmark of models in files: every way on the same prompts; what is not here is named."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import gguf_speed as speed
import numpy as np
import pytest
from peers import llama_peer, vllm_peer
from peers.work import PeerError

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from gguf_files import write

gguf = pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine of others, and a cache of its own."""
    monkeypatch.setenv("LIL_CACHE", str(tmp_path / "cache"))
    for peer in (vllm_peer, llama_peer):
        monkeypatch.setattr(peer, "PLACE", tmp_path / "nowhere")


@pytest.mark.slow
def test_every_way_is_timed_and_the_others_are_named(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", "llama")
    found = speed.real_models(
        str(tmp_path / "tiny.gguf"), [1, 2], ["full", "h2o"], 16, ["float32", "int8"], 12, 2
    )
    ways = [(row["batch"], row["peer"], row["weights"]) for row in found["rows"]]
    ours = [(name, kind) for kind in ("float32", "int8") for name in ("full", "h2o 16")]
    ours.insert(2, ("transformers", "float32"))
    assert ways == [(batch, *way) for batch in (1, 2) for way in ours]
    assert set(found["missing"]) == {"vLLM", "llama.cpp"}
    for row in found["rows"]:
        assert 0 < row["tokens"] <= 12 * row["batch"]
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["of_bound"] > 0
        assert row["times_vllm"] is None
        assert row["times_llama"] is None
    by = {(row["batch"], row["peer"], row["weights"]): row for row in found["rows"]}
    # Eight bits are a quarter of the bytes, but for norms and scales.
    for batch in (1, 2):
        full, whole = by[batch, "full", "float32"], by[batch, "full", "int8"]
        bytes_ = [row["of_bound"] * row["seconds"] / row["tokens"] for row in (full, whole)]
        assert 0.2 < bytes_[1] / bytes_[0] < 0.45


def test_blocks_of_eight_bits_hold_the_same_weights(tmp_path: Path) -> None:
    from peers.eight_bits import in_eight_bits

    source, target = tmp_path / "tiny.gguf", tmp_path / "eight.gguf"
    write(source, "qwen2")
    assert in_eight_bits(source, target) == target
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    assert {x.name for x in before.tensors} == {x.name for x in after.tensors}
    theirs = {x.name: x for x in after.tensors}
    for x in before.tensors:
        other = theirs[x.name]
        a = gguf.dequantize(np.asarray(x.data), x.tensor_type)
        b = gguf.dequantize(np.asarray(other.data), other.tensor_type)
        whole = a.ndim == 2 and a.shape[1] % 32 == 0
        assert (other.tensor_type == gguf.GGMLQuantizationType.Q8_0) == whole
        assert np.abs(a - b).max() <= (np.abs(a).max() / 250 if whole else 0)
    for name, field in before.fields.items():
        if not name.startswith("GGUF.") and name != "general.file_type":
            assert after.fields[name].contents() == field.contents()
    stamp = target.stat().st_mtime_ns
    in_eight_bits(source, target)
    assert target.stat().st_mtime_ns == stamp


def test_the_worker_answers_with_what_llama_cpp_gives() -> None:
    """With a stand-in for the binding, which prints where answers go."""
    stand_in = f"""
import runpy, sys, types
one = types.SimpleNamespace
class Params:
    def __init__(self):
        self.model, self.cpuparams, self.cpuparams_batch = one(), one(), one()
class Server:
    def __init__(self, params):
        print("a banner")
        assert (params.n_parallel, params.n_ctx, params.cpuparams.n_threads) == (2, 40, 3)
    def handle_completions(self, asked):
        print("noise")
        if asked["max_tokens"] == 13:
            return {{"error": "no luck"}}
        assert asked["ignore_eos"] and not asked["cache_prompt"]
        return {{"choices": [], "usage": {{"completion_tokens": len(asked["prompt"])}}}}
sys.modules["xllamacpp"] = one(CommonParams=Params, Server=Server, get_system_info=lambda: "cpu")
import importlib.metadata
importlib.metadata.version = lambda name: "0.1"
runpy.run_path({str(llama_peer.WORKER)!r}, run_name="__main__")
"""
    first = {"file": "f", "rows": 2, "tokens": 20, "threads": 3}
    asked = [first, {"prompts": [[4], [5, 6]], "limit": 3, "endless": True}]
    run = [sys.executable, "-I", "-c", stand_in]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    out = subprocess.run(run, input=lines, capture_output=True, text=True, check=True).stdout
    about, answer = (json.loads(line) for line in out.splitlines())
    assert about == {"xllamacpp": "0.1", "system": "cpu"}
    assert [len(row) for row in answer["tokens"]] == [1, 2]
    assert answer["seconds"] >= 0
    lines = "".join(json.dumps(one) + "\n" for one in [first, {"prompts": [[4]], "limit": 13}])
    failed = subprocess.run(run, input=lines, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "no luck" in failed.stderr


def test_llama_cpp_that_is_not_there_is_named() -> None:
    work = vllm_peer.Work("", ((1,),), 4, frozenset({0}), 0, 1)
    with pytest.raises(PeerError, match="scripts/llama_env installs it"):
        llama_peer.Llama(Path("f"), work)


@pytest.mark.slow
def test_the_program_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "tiny.gguf", "llama")
    flags = ["--batches", "1", "--backends", "full", "--tokens", "4", "--repeats", "1"]
    flags += ["--weights", "int8", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["gguf_speed", str(tmp_path / "tiny.gguf"), *flags])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(speed.__file__, run_name="__main__")
    assert ended.value.code == 0
    assert "llama.cpp: not installed" in " ".join(capsys.readouterr().out.split())

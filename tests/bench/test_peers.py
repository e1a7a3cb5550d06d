"""The benchmark of peers: what is compared with what, and what is said of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import throughput
import torch
from peers import compare, vllm_peer
from peers.bound import bound, decode_steps
from peers.ours import Decoding, Recorded
from peers.results import measure, reached, rows_of
from peers.work import Measured, Peer, PeerError, Run, Work, parting

from attention.errors import InvalidValue
from attention.methods import get
from experiments.grid.models import find, load
from tests.experiments.saved_models import save_tiny_model

WORK = Work("folder", ((5, 6), (7,)), 9, frozenset({1}), 0, 2)


@pytest.mark.parametrize(
    ("row", "expected", "place"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2, 3], [1, 4, 3], 1),
        ([1], [1, 2], 1),
        ([1, 2], [1], 1),
        ([], [3], 0),
    ],
)
def test_where_outputs_part(row: list[int], expected: list[int], place: int | None) -> None:
    assert parting(row, expected) == place


def test_what_stands_behind_the_end_is_no_output() -> None:
    assert WORK.ended([3, 1, 0, 0]) == [3, 1]
    assert WORK.ended([3, 4]) == [3, 4]
    assert WORK.ended([1]) == [1]


# ---------------------------------------------------------------- rows and ratios


def measured(peer: Peer, seconds: list[float], tokens: list[list[int]] | None) -> Measured:
    return Measured(peer, reason=None, seconds=seconds, tokens=tokens)


def test_rows_have_ratios_of_medians_and_name_what_differs() -> None:
    expected = [[2, 3, 1], [4, 1]]
    other = [[2, 8, 9, 9, 1], [4, 1]]
    found = [  # seven tokens, five expected
        measured(Peer("one", "one", (1,)), [2.0], [[4, 1]]),  # 1 token a second
        measured(Peer("vllm", "vllm", (0, 1)), [1.0, 9.0, 2.0], expected),  # 2.5
        measured(Peer("f", "ours", (0, 1), "full", "cpp"), [1.0], expected),  # 5
        measured(Peer("ft", "ours", (0, 1), "full", "torch"), [0.5], other),  # 14
        measured(Peer("h", "ours", (0, 1), "h2o", "cpp"), [0.7], other),  # 10
        measured(Peer("ff", "ours", (0, 1), "full", "cpp", forced=True), [0.5], expected),  # 10
        measured(Peer("hf", "ours", (0, 1), "h2o", "cpp", forced=True), [1.0], expected),  # 5
        measured(Peer("f2", "ours", (0, 1), "full", "cpp", processes=2), [0.25], expected),  # 20
        measured(Peer("ff2", "ours", (0, 1), "full", "cpp", 2, True), [0.125], expected),  # 40
        measured(Peer("hf2", "ours", (0, 1), "h2o", "cpp", 2, True), [0.25], expected),  # 20
        Measured(Peer("out", "continuous", (0, 1)), reason="no reason"),
    ]
    found[3].beside_seconds = [0.25]
    rows = {row["peer"]: row for row in rows_of(found, expected, "cpp")}
    assert {name: row["tokens_per_s"] for name, row in rows.items()} == pytest.approx(
        {"one": 1, "vllm": 2.5, "f": 5, "ft": 14, "h": 10, "ff": 10, "hf": 5, "f2": 20, "out": None}
        | {"ff2": 40, "hf2": 20}
    )
    assert rows["f"]["times_one"] == pytest.approx(5)
    assert rows["f"]["times_vllm"] == pytest.approx(2)
    assert rows["ft"]["times_full"] == pytest.approx(14 / 5)
    assert rows["hf"]["times_full"] == pytest.approx(0.5)  # against forced full attention
    assert rows["hf2"]["times_full"] == pytest.approx(0.5)  # of as many processes
    assert rows["vllm"]["times_full"] is None
    assert rows["ft"]["differing"] == [{"prompt": 0, "token": 1}]
    assert rows["ft"]["same"] == 1
    assert rows["one"]["same"] == 1
    assert rows["h"]["same"] is None  # a sparse method's own tokens are nobody's
    assert rows["hf"]["same"] == 2
    assert rows["out"]["reason"] == "no reason"
    assert rows["out"]["tokens"] is None
    end = reached(list(rows.values()))
    assert end["one_process"]["best"] == "ft"
    assert end["one_process"]["of_bound"] == pytest.approx(0.7)
    assert end["processes"]["best"] == "f2"
    assert end["processes"]["of_bound"] is None  # nothing was run beside it
    assert end["sparse_slower_than_full"] == ["hf", "hf2"]


def test_ratios_are_medians_of_pairs() -> None:
    expected = [[2] * 10]
    given = Peer("hf", "ours", (0,), "h2o", "cpp", forced=True)
    sparse = measured(given, [1.0, 4.0, 2.0], expected)
    sparse.beside_seconds = [2.0, 2.0, 3.0]
    whole = measured(Peer("f", "ours", (0,), "full", "cpp"), [2.0, 4.0, 10.0], expected)
    whole.beside_seconds = [1.0, 3.0, 4.0]
    forced = Peer("ff", "ours", (0,), "full", "cpp", forced=True)
    alone = measured(forced, [100.0] * 3, expected)
    rows = {row["peer"]: row for row in rows_of([sparse, whole, alone], expected, "cpp")}
    assert rows["hf"]["times_full"] == 1.5  # of 2, 0.5 and 1.5, whatever `ff` took
    assert rows["hf"]["of_bound"] is None
    assert rows["f"]["of_bound"] == 0.5  # of 0.5, 0.75 and 0.4
    assert reached([*rows.values()])["one_process"]["of_bound"] == 0.5
    assert not reached([*rows.values()])["sparse_slower_than_full"]


def test_what_is_compared_runs_directly_before() -> None:
    order: list[str] = []

    def running(name: str) -> Any:
        return lambda limit: order.append(f"{name} {limit}") or Run([[limit]], 1.0)

    def beside() -> float:
        order.append("beside")
        return 2.0

    one = Measured(Peer("a", "ours", (0,), "h2o", "cpp", forced=True), running("a"), beside=beside)
    measure([one, Measured(Peer("b", "one", (0,)), running("b"))], 2, 100, pause=0)
    assert order == ["a 16", "b 16", "beside", "a 100", "b 100", "beside", "a 100", "b 100"]
    assert one.beside_seconds == [2.0, 2.0]


def test_peers_take_turns_and_one_that_fails_is_out() -> None:
    calls: list[tuple[str, int]] = []

    def running(name: str, fails: Exception | None = None) -> Any:
        def run(limit: int) -> Run:
            calls.append((name, limit))
            if fails is not None:
                raise fails
            return Run([[limit]], float(len(calls)))

        return run

    peers = [Peer(name, "ours", (0,)) for name in "abc"]
    found = [
        Measured(peers[0], running("a")),
        Measured(peers[1], running("b", PeerError("broken"))),
        Measured(peers[2], running("c", InvalidValue("x", 1, "2"))),
        Measured(Peer("d", "vllm", (0,)), None, "absent"),
    ]
    measure(found, 2, 100, pause=0)
    assert calls == [("a", 16), ("b", 16), ("c", 16), ("a", 100), ("a", 100)]
    assert found[0].seconds == [4.0, 5.0]  # the first run is not timed
    assert found[0].tokens == [[100]]
    assert [one.reason for one in found[1:]] == ["broken", "x = 1: expected 2", "absent"]


# ---------------------------------------------------------------- the bound


def test_steps_are_those_of_a_batch_from_which_rows_leave() -> None:
    prompts, outputs = [[0] * 4, [0] * 2, [0]], [[9] * 3, [9], [9] * 5]
    lengths, steps = [4, 2, 1], []
    made = [1, 1, 1]  # after the prompts
    while any(m < len(out) for m, out in zip(made, outputs, strict=True)):
        rows = [i for i in range(3) if made[i] < len(outputs[i])]
        for i in rows:
            lengths[i] += 1  # the newest token is read
            made[i] += 1
        steps.append((len(rows), sum(lengths[i] for i in rows)))
    assert decode_steps(prompts, outputs) == steps


def test_the_bound_is_the_model_without_attention_and_bytes() -> None:
    config = SimpleNamespace(
        head_dim=8, num_hidden_layers=3, num_key_value_heads=2, num_attention_heads=4
    )
    model = SimpleNamespace(config=config, dtype=torch.float32)
    asked = []

    def rest(_: Any, rows: int, tokens: int) -> float:
        asked.append((rows, tokens))
        return rows if tokens == 1 else 100.0

    found = bound(model, [[0] * 4, [0]], [[9, 9, 9], [9, 9]], bandwidth=10.0, rest=rest)
    # Steps of 2 rows with 5 + 2 keys, then 1 row with 6.
    assert found.steps == 2
    assert found.model_s == 3
    assert found.prompts_s == 100
    assert found.read_bytes == 13 * 3 * 2 * 8 * 2 * 4
    assert found.seconds == pytest.approx(103 + found.read_bytes / 10)
    assert set(asked) == {(2, 1), (1, 1), (1, 5)}


# ---------------------------------------------------------------- forced tokens


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(find(str(save_tiny_model(tmp_path_factory.mktemp("model")))), "float32", "cpu")


@pytest.mark.parametrize("name", ["full", "h2o"])
def test_forced_tokens_are_decoded_one_by_one(name: str, loaded: Any) -> None:
    backend = get(name, **({} if name == "full" else {"budget": 8, "dense_layers": 0}))
    generator = torch.Generator().manual_seed(3)
    # Two prompts begin alike, and rows end one after the other.
    prompts = [[20, 21, 22], [20, 21], [30, 31, 32, 33]]
    given = [torch.randint(10, 60, (n,), generator=generator).tolist() for n in (12, 5, 30)]
    forwards = []
    handle = loaded.model.register_forward_hook(lambda *_: forwards.append(1), with_kwargs=False)
    way = (prompts, backend, "torch", given)
    one = Decoding(loaded.model, loaded.tokenizer, loaded.token_bytes, *way)
    try:
        assert one(1024).tokens == given
        assert len(forwards) == 30  # the prompts, and a step for each token but the last
        assert one(7).tokens == [row[:7] for row in given]
    finally:
        handle.remove()


def test_a_peer_that_cannot_compile_is_out(
    loaded: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("LIL_CACHE", str(tmp_path))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps").chmod(0o777)
    way = ([[20, 21]], get("full"), "torch", None, True)
    with pytest.raises(PeerError, match=r"not compiled: .* can be written to by other users"):
        Decoding(loaded.model, loaded.tokenizer, loaded.token_bytes, *way)(4)


def test_a_row_without_a_record_is_refused() -> None:
    penalty = Recorded(records=torch.tensor([[4, 5, 6]]), prompts=torch.tensor([2]))
    scores = torch.zeros(1, 10)
    out = penalty.apply(penalty.begin(torch.tensor([[4, 5]]), 10), scores)
    assert out.argmax().item() == 6
    assert torch.isfinite(out).all()
    assert not scores.any()
    with pytest.raises(PeerError, match="left its recorded tokens"):
        penalty.begin(torch.tensor([[4, 6]]), 10)
    with pytest.raises(PeerError, match="left its recorded tokens"):
        penalty.begin(torch.tensor([[4]]), 10)  # shorter than the prompt


# ---------------------------------------------------------------- vLLM's process

SPEAKING = """\
import json, sys
asked = json.loads(sys.stdin.readline())
print(json.dumps({"vllm": "1", "torch": "2", "threads": 3, "openmp": asked["folder"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["limit"] == 13:
        sys.exit("\\nno luck\\n")
    tokens = [ids[: asked["limit"]] for ids in asked["prompts"]]
    print(json.dumps({"tokens": tokens, "seconds": 0.5}), flush=True)
"""


def test_vllm_is_asked_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(SPEAKING)
    monkeypatch.setattr(vllm_peer, "WORKER", worker)
    engine = vllm_peer.VLLM(Path(sys.executable), WORK)
    try:
        assert engine.about == {"vllm": "1", "torch": "2", "threads": 3, "openmp": "folder"}
        assert engine(1) == Run([[5], [7]], 0.5)
        with pytest.raises(PeerError, match="its process ended: no luck"):
            engine(13)
    finally:
        engine.close()
    worker.write_text("import nothing_of_this_name")
    with pytest.raises(PeerError, match="nothing_of_this_name"):
        vllm_peer.VLLM(Path(sys.executable), WORK)


def test_the_worker_answers_with_what_vllm_gives() -> None:
    """With a stand-in for vLLM, which prints where answers go."""
    stand_in = f"""
import runpy, sys, types
class LLM:
    def __init__(self, **settings):
        print("a banner")
        assert settings["dtype"] == "float32" and settings["max_num_seqs"] == 2, settings
    def generate(self, prompts, options, use_tqdm):
        print("noise")
        made = [ids["prompt_token_ids"] + [options["max_tokens"]] for ids in prompts]
        one = types.SimpleNamespace
        return [one(outputs=[one(token_ids=tuple(row))]) for row in made]
sys.modules["vllm"] = types.SimpleNamespace(LLM=LLM, SamplingParams=dict)
sys.modules["torch"] = types.SimpleNamespace(__version__="9", get_num_threads=lambda: 2)
import importlib.metadata
importlib.metadata.version = lambda name: "0.1"
runpy.run_path({str(vllm_peer.WORKER)!r}, run_name="__main__")
"""
    asked = [{"folder": "f", "rows": 2, "dtype": "float32"}, {"prompts": [[4], [5, 6]], "limit": 3}]
    out = subprocess.run(
        [sys.executable, "-I", "-c", stand_in],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    ready, answer = map(json.loads, out.stdout.splitlines())
    assert ready["vllm"] == "0.1"
    assert answer["tokens"] == [[4, 3], [5, 6, 3]]
    assert "noise" in out.stderr


def test_where_vllm_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_peer, "PLACE", tmp_path / "python")
    with pytest.raises(PeerError, match="scripts/vllm_env"):
        vllm_peer.python_with_vllm(None)
    with pytest.raises(InvalidValue, match="vllm = "):
        vllm_peer.python_with_vllm(str(tmp_path / "python"))
    assert vllm_peer.python_with_vllm(sys.executable) == Path(sys.executable)


def test_vllm_has_the_threads_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 2, 7}, raising=False)
    made = vllm_peer._environment(Path("/nowhere/bin/python"), 2)
    assert made["OMP_NUM_THREADS"] == "2"
    assert made["VLLM_CPU_OMP_THREADS_BIND"] == "2,4"
    assert vllm_peer._environment(Path("/x/bin/python"), 4)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "meduim"}, "did you mean 'medium'"),
        ({"problems": 0}, "problems = 0"),
        ({"repeats": 0}, "repeats = 0"),
        ({"max_new_tokens": 1}, "max_new_tokens = 1"),
        ({"engines": ["torhc"]}, "did you mean 'torch'"),
        ({"backends": ["qest"]}, "did you mean 'quest'"),
        ({"vllm": "/no/python"}, "vllm = '/no/python'"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        compare.peers(**options)


def test_the_table_fits_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = [[2] * 4000] * 32
    every = tuple(range(32))
    found = [
        measured(Peer("transformers, one at a time", "one", (0, 1)), [100.0], expected[:2]),
        measured(Peer("vLLM", "vllm", every), [1234.5], [[2] * 10 + [3], *expected[1:]]),
        measured(Peer("full, torch", "ours", every, "full", "torch"), [10.0], expected),
        measured(
            Peer("snapkv 128, torch, forced", "ours", every, "snapkv", "torch", forced=True),
            [12.0],
            expected,
        ),
        Measured(Peer("transformers, generate_batch", "continuous", every), reason="it is absent"),
    ]
    found[2].beside_seconds = [6.0]
    rows = rows_of(found, expected, "torch")
    least = {"prompts_s": 1.0, "model_s": 2.0, "read_bytes": 10**9, "read_s": 3.0, "steps": 4000}
    document = {
        "rows": rows,
        "bound": {**least, "seconds": 6.0},
        "shared_bound": None,
        "reached": reached(rows),
        "aims": compare.AIMS,
        "problems": 32,
        "level": "medium",
        "repeats": 3,
    }
    monkeypatch.setattr(throughput, "peers", lambda *_, **__: document)
    monkeypatch.setenv("COLUMNS", "80")
    assert throughput.main([]) == 0
    text = capfd.readouterr().out
    assert "snapkv 128, torch, forced" in text
    assert "transformers, generate_batch: it is absent" in text
    assert "vLLM differs from ours: prompt 0 from token 10" in text
    assert "60% of the bound (aim 85%)" in text
    assert "31/32" in text
    assert max(map(len, text.splitlines())) <= 80
    forced = next(line for line in text.splitlines() if line.startswith("snapkv"))
    assert forced.rstrip().endswith("32/32")


@pytest.mark.slow
def test_every_peer_makes_the_same_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_peer, "PLACE", tmp_path / "python")
    line = "--level easy --problems 2 --one 1 --repeats 1 --backends full,h2o"
    sizes = "--engines torch --budget 64 --max-new-tokens 60"
    assert throughput.main([*line.split(), *sizes.split(), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["peer"]: row for row in found["rows"]}
    assert rows["vLLM"]["reason"].startswith("not installed")
    same = {name: row["same"] for name, row in rows.items() if row["same"] is not None}
    assert same == {
        "transformers, one at a time": 1,
        "transformers, padded batch": 2,
        "transformers, generate_batch": 2,
        "full, torch": 2,
        "full, torch, compiled": 2,
        "full, torch, compiled, forced": 2,
        "h2o 64, torch, compiled, forced": 2,
        "full, torch, 2 processes": 2,
        "full, torch, compiled, 2 processes": 2,
        "full, torch, compiled, 2 processes, forced": 2,
        "h2o 64, torch, compiled, 2 processes, forced": 2,
    }
    assert found["bound"]["steps"] == 59
    assert found["shared_bound"]["steps"] == 59
    assert found["shared_bound"]["read_bytes"] < found["bound"]["read_bytes"]
    assert found["reached"]["one_process"]["best"].startswith("full, torch")

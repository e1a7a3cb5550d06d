"""The command line: one JSON document, help, exit codes, and every noun once."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from sweeping import json_of

import lil
from experiments.cli import entry, main
from experiments.cli.progress import Bars
from experiments.grid.presets import preset_text
from experiments.report.row import columns
from experiments.store import manifest
from experiments.store.store import Store
from experiments.sweep import decoder, runner

ROOT = Path(__file__).parents[2]
CapFd = pytest.CaptureFixture[str]

GYM = 'open("marker", "w").write("ran")\n'


@pytest.fixture(scope="module")
def swept(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a finished sweep, and its command."""
    out = tmp_path_factory.mktemp("cli") / "store"
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    command += ["--limit", "3", "--backend", "h2o,quest", "--budget", "32,96", "--threads", "1"]
    command += ["--max-new-tokens", "60", "--out", str(out), "--no-figures"]
    command += ["--set", "detector_params.guardian.f=10"]
    command += ["--set", "detector_params.guardian.rate=0.8"]
    assert main(command) == 0
    return out, command


def test_sweep_and_report_give_the_same_document(
    swept: tuple[Path, list[str]], capfd: CapFd, tmp_path: Path
) -> None:
    out, command = swept
    document = json_of(capfd, *command)
    assert set(document) == {"manifest", "rows", "pooled", "stopping"}
    rows = document["rows"]
    assert len(rows) == 5 * 2
    assert all(list(row) == list(columns()) for row in rows)
    assert {row["detector"] for row in rows} == {"none", "guardian"}
    assert document["manifest"]["status"] == "finished"
    files = [str(tmp_path / f"rows.{suffix}") for suffix in ("csv", "md", "tex")]
    flags = [word for file in files for word in ("--rows", file)]
    flags += ["--csv", str(tmp_path / "samples.csv"), "--no-figures"]
    assert json_of(capfd, "report", str(out), *flags)["rows"] == rows
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 2 * 15
    assert len(Path(files[0]).read_text().splitlines()) == len(rows) + 1
    assert Path(files[1]).read_text().count("\n| h2o ") >= 2
    assert r"\end{tabular}" in Path(files[2]).read_text()


def test_two_stores_are_reported_with_all_that_each_has(
    swept: tuple[Path, list[str]], capfd: CapFd, tmp_path: Path
) -> None:
    out, command = swept
    second = str(tmp_path / "second")
    at = command.index("--dataset") + 1
    assert main([*command[:at], "easy,medium", *command[at + 1 :], "--out", second]) == 0
    alone = {
        s: json_of(capfd, "report", s, "--no-figures", "--no-page") for s in (str(out), second)
    }
    both = json_of(capfd, "report", str(out), second, "--no-figures", "--no-page")
    assert alone[second]["pooled"]  # of two data sets
    assert len({row["store"] for row in both["rows"]}) == 2
    for key in ("rows", "pooled", "stopping"):
        stripped = [{k: v for k, v in row.items() if k != "store"} for row in both[key]]
        assert stripped == [row for document in alone.values() for row in document[key]], key


def test_replay_takes_other_parameters(swept: tuple[Path, list[str]], capfd: CapFd) -> None:
    out = str(swept[0])
    document = json_of(
        capfd, "replay", out, "--set", "guardian.f=5,10", "--set", "guardian.rate=0.4,0.8"
    )
    assert list(document) == ["manifest", "rows", "pooled", "stopping"]
    labels = {f"guardian(f={f}, rate={rate})" for f in (5, 10) for rate in (0.4, 0.8)}
    assert {row["detector"] for row in document["rows"]} == {"none"} | labels
    alone = json_of(capfd, "replay", out, "--set", "budget.tokens=7")["rows"]
    assert alone == json_of(capfd, "replay", out, "--detector", "budget(tokens=7)")["rows"]
    assert (
        alone == json_of(capfd, "replay", out, "--set", "detector_params.budget.tokens=7")["rows"]
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--set budget", "NAME.PARAMETER=VALUE"),
        ("--set guardian.on_stop=answer", "on_stop = 'answer': expected stop (guardian"),
        ("--detector budget(tokens=3):answer", "on_stop = 'answer': expected stop (budget"),
        ("--set guardian.t=3 --set guardian.rate=1", "t or rate of guardian, not both"),
        ("--set guardian.f=ten", "f = 'ten': expected an integer"),
        ("--detector chopper", "weights for"),
        ("--set chopper.weights=experiments.reasoner:chopper-2.safetensors", "15 of 15"),
    ],
)
def test_replay_refuses_in_one_message(
    swept: tuple[Path, list[str]], capfd: CapFd, flags: str, words: str
) -> None:
    capfd.readouterr()
    assert main(["replay", str(swept[0]), *flags.split()]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


RUN = ["run", "--preset", "demo-small", "--threads", "1", "--max-new-tokens", "60"]


def test_run_streams_and_stops_live(tiny_model: Path, capfd: CapFd) -> None:
    base = [*RUN, "--model", str(tiny_model), "--backend", "h2o", "--budget", "32"]
    base += ["--detector", "guardian(f=5,rate=2)"]
    stopped = [s for s in json_of(capfd, *base)["samples"] if s["finish"] == "guardian"]
    assert stopped
    assert all(sample["evidence"]["step"] == sample["tokens"] for sample in stopped)
    assert main(base) == 0
    printed = " ".join(capfd.readouterr().out.split())
    for words in ("ended by guardian", "growth_bytes", " ".join(stopped[0]["text"].split()[:4])):
        assert words in printed


def test_run_prints_an_action_and_the_text_after_it(tiny_model: Path, capfd: CapFd) -> None:
    base = [*RUN, "--model", str(tiny_model), "--limit", "1"]
    base += ["--detector", "budget(tokens=2):answer", "--set", "action_params.answer.tokens=6"]
    (sample,) = json_of(capfd, *base)["samples"]
    assert sample["action"]["name"] == "answer"
    assert main(base) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "budget at token 2: answer, 2 kept, 0 dropped" in printed
    assert " ".join(sample["text"].partition("</think>")[2].split()) in printed


def test_texts_from_elsewhere_are_replayed(tiny_model: Path, capfd: CapFd, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"id": "a", "output": "so so so so so so so so"}\n{"id": "b", "text": "so"}\n')
    command = ["replay", str(file), "--set", "budget.tokens=3"]
    document = json_of(capfd, *command, "--tokenizer", str(tiny_model))
    first, second = (text["detectors"][0] for text in document["texts"])
    assert (first["fired_at"], first["kept"], second["fired_at"]) == (3, 3, None)
    (budget,) = document["detectors"]
    tokens = first["tokens"] + second["tokens"]  # a text that is not stopped stays whole
    assert (budget["stopped"], budget["kept"], budget["tokens"]) == (1, 4, tokens)
    for more, words in (([], "--tokenizer MODEL"), (["--load", "a:B"], "a file of texts")):
        assert main([*command, *more]) == 2
        assert words in capfd.readouterr().err


def _points(document: dict[str, Any]) -> list[tuple[int | None, int, int]]:
    return [(p["tokens"], p["original_bytes"], p["compressed_bytes"]) for p in document["points"]]


def test_the_curve_of_any_file_is_the_librarys(capfd: CapFd, tmp_path: Path) -> None:
    for data in (b"", bytes(range(256)) * 3, "déjà vu, ".encode() * 90 + b"\xc3"):
        file = tmp_path / "file"
        file.write_bytes(data)
        (document,) = json_of(capfd, "curve", str(file), "--every", "100", "--codec", "lz77")
        assert _points(document) == lil.curve(data, every_bytes=100, codec="lz77")
        assert main(["curve", str(file)]) == 0


def test_the_curve_of_a_stored_trace(swept: tuple[Path, list[str]], capfd: CapFd) -> None:
    record = max(Store(swept[0]), key=lambda record: record.meta["tokens"])
    trace, name = record.trace(), f"{swept[0]}:{record.id[:8]}"
    (document,) = json_of(capfd, "curve", name)
    assert _points(document) == lil.token_curve(trace.text_pieces, every_tokens=50)
    (document,) = json_of(capfd, "curve", name, "--every", "30")  # bytes, as of any text
    assert _points(document) == lil.curve(b"".join(trace.text_pieces), every_bytes=30)


def test_list_names_everything_with_its_source(capfd: CapFd) -> None:
    document = json_of(capfd, "list")
    backends = {entry["name"]: entry for entry in document.pop("backends")}
    assert {"full", "h2o", "sink", "quest", "infllm"} <= set(backends)
    assert all(entry["source"] and entry["error"] is None for entry in backends.values())
    assert backends["quest"]["package"] == "lil-attention"
    page = {"name": "page", "required": False, "default": 16}
    assert page in backends["quest"]["parameters"]
    assert "guardian" in document["detectors"]
    assert {"easy", "medium", "hard", "gsm8k", "math500", "aime"} <= set(document["datasets"])
    for name, line in document["presets"].items():
        assert line.endswith("."), name
        assert preset_text(name).startswith(f"# {line[:40]}")
    assert main(["--json", "list", "presets"]) == 0  # before the noun, too
    assert json.loads(capfd.readouterr().out) == {"presets": document["presets"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a command is run in, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    return tmp_path


def test_a_backend_may_lie_in_the_folder_of_the_command(capfd: CapFd, folder: Path) -> None:
    (folder / "lil_helps_here.py").write_text("Method = dict\n")
    (folder / "lil_lies_here.py").write_text("from lil_helps_here import Method\n")
    before = [*sys.path]
    assert main(["run", "--backend", "lil_lies_here:Method", "--budget", "8"]) == 2
    assert "a subclass of attention.Backend" in capfd.readouterr().err
    assert sys.path == before


def test_no_file_there_stands_in_for_a_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("reasoning_gym", "math_verify", "datasets"):
        (folder / f"{name}.py").write_text(GYM)
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
        monkeypatch.delitem(sys.modules, name)
    path = [p for p in sys.path if not (Path(p) / "reasoning_gym").exists()]
    monkeypatch.setattr(sys, "path", path)
    importlib.invalidate_caches()
    (folder / "mine.toml").write_text("limit = 1\n")
    command = ["sweep", "--dataset", "gym:chain_sum", "--detector", "cycle:answer", "--dry-run"]
    for more in ([], ["--preset", "mine.toml"]):
        assert main([*command, *more]) == 2
    assert not (folder / "marker").exists()


def test_threads_wait_passively_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    main([])
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    main([])
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    capfd.readouterr()


def test_without_a_noun_there_is_help_and_exit_code_2(capfd: CapFd) -> None:
    assert main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert all(noun in err for noun in entry.NOUNS)


def test_ctrl_c_leaves_with_130_and_the_next_sweep_goes_on(
    swept: tuple[Path, list[str]], tmp_path: Path, capfd: CapFd, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "o")
    command = [*swept[1], "--out", out, "--limit", "1"]
    steps = itertools.count()

    def interrupt(_self: object, _tokens: int) -> None:
        if next(steps) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "step", interrupt)
        assert main(command) == 130
    err = capfd.readouterr().err
    assert f"what was decoded is in {out}; the same command goes on from there" in err
    assert err.endswith("lil: interrupted\n")
    assert manifest.read(tmp_path / "o")["status"] == "interrupted"
    assert main(command) == 0


def test_a_scheduler_ends_a_sweep_as_ctrl_c_does(
    swept: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(runner.Runner, "_decode_model", killed)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        assert main([*swept[1], "--limit", "1", "--out", str(tmp_path / "o")]) == 130
    finally:
        after = signal.signal(signal.SIGHUP, before)
    assert after is signal.SIG_DFL
    assert manifest.read(tmp_path / "o")["status"] == "interrupted"


def test_all_runs_failing_is_exit_code_1(
    swept: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(decoder.lil, "stream", broken)
    assert main([*swept[1], "--out", str(tmp_path / "o"), "--limit", "1"]) == 1
    out, err = capfd.readouterr()
    assert "no kernel image" in err
    assert "5 runs failed" in out


def test_shards_are_merged_by_copying(
    swept: tuple[Path, list[str]], tmp_path: Path, capfd: CapFd
) -> None:
    """Two shards of one experiment, put together, hold all runs of the whole."""
    whole, command = swept
    for at in range(2):
        shard = ["--limit", str(2 - at), "--offset", str(2 * at), "--out", str(tmp_path / f"{at}")]
        assert main([*command, *shard, "--no-page"]) == 0
    for folder in ("traces", "sweeps"):
        for file in (tmp_path / "1" / folder).iterdir():
            (tmp_path / "0" / folder / file.name).write_bytes(file.read_bytes())
    capfd.readouterr()
    merged = [*command, "--out", str(tmp_path / "0"), "--no-page"]
    assert main([*merged, "--json"]) == 0
    out, err = capfd.readouterr()
    assert "15 of 15 runs are in the store already" in err
    assert "0 runs decoded" in err
    known = json_of(capfd, "report", str(whole), "--no-figures", "--no-page")["rows"]
    for row, expected in zip(json.loads(out)["rows"], known, strict=True):
        for key in ("backend", "budget", "detector", "n", "accuracy", "mean_tokens"):
            assert row[key] == expected[key], key


def test_a_figure_that_cannot_be_written_loses_nothing(
    swept: tuple[Path, list[str]], tmp_path: Path, capfd: CapFd
) -> None:
    (tmp_path / "file").write_text("")
    capfd.readouterr()
    flags = ["--no-page", "--figures", str(tmp_path / "file" / "below")]
    assert main(["report", str(swept[0]), "--json", *flags]) == 2
    assert "lil: error: figures = " in capfd.readouterr().err

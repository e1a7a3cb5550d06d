"""The command line: one JSON document, help, exit codes, and every noun once."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lil
from experiments.cli import entry, main
from experiments.cli.parser import Parser
from experiments.grid.config import Config, check
from experiments.grid.presets import load, preset_text
from experiments.report import figures
from experiments.store import manifest
from experiments.sweep import decoder, runner
from lil.chopper import Labeller, Training

ROOT = Path(__file__).parents[2]
CapFd = pytest.CaptureFixture[str]


# In the order of the specification; a plain list, as JSON gives it back.
@pytest.fixture(scope="module")
def swept(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a finished sweep, and its command."""
    out = tmp_path_factory.mktemp("cli") / "store"
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"]
    command += ["--limit", "3", "--backend", "h2o,quest", "--budget", "32,96", "--threads", "1"]
    command += ["--max-new-tokens", "60", "--out", str(out)]
    command += ["--set", "detector_params.guardian.f=10"]
    command += ["--set", "detector_params.guardian.rate=0.8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda *_: [])
        assert main(command) == 0
    return out, command


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds; where it is not what is tested, it is left out."""
    monkeypatch.setattr(figures, "draw", lambda *_: [])


def _json(capfd: CapFd, *arguments: str) -> Any:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)  # fails if anything stands beside the document


def test_a_sweep_says_what_it_found(swept: tuple[Path, list[str]], capfd: CapFd) -> None:
    out, command = swept
    capfd.readouterr()
    assert main(command) == 0
    printed, said = capfd.readouterr()
    assert "15 of 15 runs are in the store already" in said
    assert "0 runs decoded" in said
    assert "easy: 3 problems" in printed
    assert "What guardian saves" in printed
    for number in (1, 2, 3):
        assert f"figures/figure{number}" in printed
    assert any((out / "figures").glob("figure1*.png"))
    assert printed.strip().endswith(f"store: {out}")
    assert "over 4 configurations." in " ".join(printed.split())  # the headline


@pytest.mark.usefixtures("no_figures")
def test_json_is_one_document_with_the_rows(swept: tuple[Path, list[str]], capfd: CapFd) -> None:
    _, command = swept
    document = _json(capfd, *command)
    assert set(document) == {"manifest", "rows", "pooled", "stopping"}
    assert document["pooled"] == []  # there is one data set
    (guardian,) = document["stopping"]
    effects = [row["detector_effect"] for row in document["rows"] if row["backend"] != "full"]
    fired = sum(effect["fired"] for effect in effects if effect)
    assert (guardian["detector"], guardian["samples"]) == ("guardian", 12)
    assert guardian["effect"]["fired"] == fired
    rows = document["rows"]
    assert len(rows) == 5 * 2
    assert {row["detector"] for row in rows} == {"none", "guardian"}
    assert document["manifest"]["status"] == "finished"
    assert document["manifest"]["headline"]


@pytest.mark.usefixtures("no_figures")
def test_a_report_gives_the_sweeps_rows_and_files(
    swept: tuple[Path, list[str]], capfd: CapFd, tmp_path: Path
) -> None:
    out, command = swept
    expected = _json(capfd, *command)["rows"]
    csv = tmp_path / "samples.csv"
    assert _json(capfd, "report", str(out), "--csv", str(csv))["rows"] == expected
    lines = csv.read_text().splitlines()
    assert len(lines) > 2 * 15
    assert lines[0].startswith("model,dataset,item_id")
    files = [str(tmp_path / f"rows.{suffix}") for suffix in ("csv", "md", "tex")]
    asked = [word for file in files for word in ("--rows", file)]
    assert _json(capfd, "report", str(out), *asked)["rows"] == expected
    assert len(Path(files[0]).read_text().splitlines()) == len(expected) + 1
    assert "| backend | budget |" in Path(files[1]).read_text()
    assert Path(files[2]).read_text().count(r"\end{tabular}") == 2


def test_replay_takes_other_parameters(swept: tuple[Path, list[str]], capfd: CapFd) -> None:
    out, _ = swept
    document = _json(capfd, "replay", str(out), "--f", "5,10", "--rate", "0.4,0.8", "--check-live")
    assert list(document) == ["manifest", "rows", "pooled", "stopping"]  # as `lil report` has them
    labels = {row["detector"] for row in document["rows"]}
    assert labels == {"none"} | {
        f"guardian(f={f}, rate={rate})" for f in (5, 10) for rate in (0.4, 0.8)
    }
    assert [one["traces"] for one in document["manifest"]["live"]] == [15] * 4
    assert not any(one["differ"] for one in document["manifest"]["live"])
    assert sum(one["verdicts"] for one in document["manifest"]["live"]) > 0

    by_rate = _json(capfd, "replay", str(out), "--f", "10", "--rate", "0.8")["rows"]
    by_bytes = _json(capfd, "replay", str(out), "--f", "10", "--t", "8")["rows"]
    assert by_rate == by_bytes


def test_replay_takes_every_detector_and_any_parameter(
    swept: tuple[Path, list[str]], capfd: CapFd
) -> None:
    out, _ = swept
    asked = ["--detector", "cycle,budget,guardian", "--set", "budget.tokens=7,15"]
    asked += ["--set", "cycle.min_tokens=0", "--set", "cycle.outside=0", "--set", "cycle.repeats=2"]
    document = _json(capfd, "replay", str(out), *asked, "--check-live", "--decode", "4")
    labels = ["cycle", "budget(tokens=7)", "budget(tokens=15)", "guardian"]
    assert {row["detector"] for row in document["rows"]} == {"none", *labels}
    assert [one["label"] for one in document["manifest"]["detectors"]] == labels
    checked = document["manifest"]["live"]
    assert [(one["detector"], one["traces"]) for one in checked] == [
        (label, traces) for label in labels for traces in (15, 4)
    ]
    assert not any(one["differ"] for one in checked)
    fed = {one["detector"]: one["verdicts"] for one in checked if one["traces"] == 15}
    assert all(fed.values()), fed
    stopped = {r["detector"]: r["stopped"] for r in document["rows"] if r["backend"] == "full"}
    assert 0 < stopped["budget(tokens=15)"] <= stopped["budget(tokens=7)"]

    alone = _json(capfd, "replay", str(out), "--set", "budget.tokens=7")["rows"]
    assert alone == _json(capfd, "replay", str(out), "--detector", "budget(tokens=7)")["rows"]
    assert {row["detector"] for row in alone} == {"none", "budget"}
    same = [{**row, "detector": "budget(tokens=7)"} for row in alone if row["detector"] != "none"]
    assert same == [row for row in document["rows"] if row["detector"] == "budget(tokens=7)"]
    assert {row["detector"] for row in _json(capfd, "replay", str(out))["rows"]} == {
        "none",
        "guardian",
    }
    capfd.readouterr()
    assert main(["replay", str(out), "--set", "budget.tokens=7"]) == 0
    assert "budget(tokens=7)" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("--detector guradian", "did you mean 'guardian'"),
        ("--set budget.tokns=3", "did you mean 'tokens'"),
        ("--set budget.tokens=x", "tokens = 'x'"),
        ("--set budget", "NAME.PARAMETER=VALUE"),
        ("--set guardian.on_stop=answer", "on_stop = 'answer': expected stop (guardian"),
        ("--detector cycle --f 5", "a parameter of cycle"),
        ("--f 5 --set guardian.f=6", "--f or --set, not both"),
        ("--detector budget(tokns=3)", "did you mean 'tokens'"),
        ("--detector budget(tokens=3):answer", "on_stop = 'answer': expected stop (budget"),
        ("--t 3 --rate 1", "--t or --rate, not both"),
        ("--t x", "t = 'x'"),
        ("--f ten", "f = 'ten': expected an integer"),
        ("--codec ,", "one or more values"),
        ("--codec defalte", "did you mean 'deflate'"),
    ],
)
def test_replay_refuses_in_one_message(
    swept: tuple[Path, list[str]], capfd: CapFd, asked: str, words: str
) -> None:
    capfd.readouterr()
    assert main(["replay", str(swept[0]), *asked.split()]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_run_streams_live_and_stops_live(tiny_model: Path, capfd: CapFd) -> None:
    base = ["run", "--preset", "demo-small", "--model", str(tiny_model), "--threads", "1"]
    base += ["--backend", "h2o", "--budget", "32", "--max-new-tokens", "60", "--limit", "3"]
    plain = _json(capfd, *base)
    assert [s["finish"] in ("eos", "length") for s in plain["samples"]] == [True] * 3
    assert all(s["evidence"] is None for s in plain["samples"])
    base += ["--detector", "guardian", "--set", "detector_params.guardian.f=5"]
    base += ["--set", "detector_params.guardian.rate=2"]
    document = _json(capfd, *base)
    stopped = [s for s in document["samples"] if s["finish"] == "guardian"]
    assert stopped
    for sample in stopped:
        assert sample["evidence"]["step"] == sample["tokens"]
    capfd.readouterr()
    assert main(base) == 0
    printed = capfd.readouterr().out
    assert "ended by guardian" in printed
    assert "growth_bytes" in printed
    words = stopped[0]["text"].split()
    assert " ".join(words[:4]) in " ".join(printed.split())  # the text itself was printed


def test_run_says_what_was_done_and_how_it_went_on(tiny_model: Path, capfd: CapFd) -> None:
    base = ["run", "--preset", "demo-small", "--model", str(tiny_model), "--threads", "1"]
    base += ["--max-new-tokens", "60", "--limit", "1", "--detector", "budget:answer"]
    base += ["--set", "detector_params.budget.tokens=2", "--set", "action_params.answer.tokens=6"]
    (sample,) = _json(capfd, *base)["samples"]
    assert sample["action"]["name"] == "answer"
    assert sample["decoded_tokens"] == sample["tokens"]
    assert main(base) == 0
    printed = capfd.readouterr().out
    assert "budget at token 2: answer, 2 kept, 0 dropped" in " ".join(printed.split())
    after = "</think>" + sample["text"].partition("</think>")[2]
    assert " ".join(after.split()) in " ".join(printed.split())


@pytest.mark.parametrize(
    ("asked", "given"), [((), "kept"), (("--compile", "off"), "off"), (("--compile", "on"), "on")]
)
def test_run_compiles_where_it_is_told_to(
    asked: tuple[str, ...], given: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SeenError(Exception):
        pass

    def decode(*_: Any, **options: Any) -> None:
        raise SeenError(options["compile"])

    monkeypatch.setattr(lil, "decode", decode)
    base = ["run", "--preset", "demo-small", "--model", str(tiny_model), "--limit", "1"]
    with pytest.raises(SeenError, match=f"^{given}$"):
        main([*base, *asked])


def _points(document: dict[str, Any]) -> list[tuple[int | None, int, int]]:
    return [(p["tokens"], p["original_bytes"], p["compressed_bytes"]) for p in document["points"]]


@pytest.mark.parametrize("codec", lil.compression.codecs.names())
def test_the_curve_of_any_file_is_the_librarys(codec: str, capfd: CapFd, tmp_path: Path) -> None:
    for name, data in {
        "nothing": b"",
        "short": b"a",
        "no text": bytes(range(256)) * 3,
        "inside a character": "déjà vu, ".encode() * 90 + b"\xc3",
    }.items():
        file = tmp_path / name
        file.write_bytes(data)
        (document,) = _json(capfd, "curve", str(file), "--every", "100", "--codec", codec)
        assert _points(document) == lil.curve(data, every_bytes=100, codec=codec)
        assert (document["file"], document["codec"]) == (str(file), codec)
        assert sum(p["original_bytes"] == len(data) for p in document["points"]) == bool(data)
        assert main(["curve", str(file), "--codec", codec]) == 0


def test_bounds_of_the_entropy_need_fixed_length_codewords(capfd: CapFd, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"again and " * 40)
    (document,) = _json(capfd, "curve", str(file), "--codec", "lz77", "--bounds")
    least, most = document["entropy_bounds"]
    assert most == document["points"][-1]["ratio"]
    # eps at Ls = 64 and 256 symbols, worked out by hand: (3 + 3 * 5.977 / 8 + 5 / 8) / 63.
    assert most - least == pytest.approx(0.09312, abs=1e-4)
    assert main(["curve", str(file), "--codec", "lz77", "--bounds"]) == 0
    assert f"{least:.3f} to {most:.3f}" in capfd.readouterr().out
    assert main(["curve", str(file), "--bounds"]) == 2
    assert "codec = 'deflate': expected lz77" in capfd.readouterr().err


def test_curves_of_a_text_and_of_a_stored_trace(
    swept: tuple[Path, list[str]], capfd: CapFd, tmp_path: Path
) -> None:
    text = tmp_path / "loop.txt"
    text.write_text("the same words again " * 300)
    plot = tmp_path / "curve.png"
    (document,) = _json(capfd, "curve", str(text), "--every", "2000", "--plot", str(plot))
    ratios = [point["ratio"] for point in document["points"]]
    assert ratios == sorted(ratios, reverse=True)
    assert document["points"][-1]["original_bytes"] == 6300
    assert document["points"][0]["tokens"] is None
    assert plot.stat().st_size > 1000

    from experiments.store.store import Store

    record = max(Store(swept[0]), key=lambda record: record.meta["tokens"])
    trace = record.trace()
    (document,) = _json(capfd, "curve", f"{swept[0]}:{record.id[:8]}", "--every-tokens", "7")
    assert [p["tokens"] for p in document["points"]][:2] == [7, 14]
    assert _points(document) == lil.token_curve(trace.text_pieces, every_tokens=7)
    assert trace.finish == "length"
    # At the step of its checks, the curve is the one that was made while the run was going on.
    step = str(trace.curve[0][0])
    stored = ["curve", f"{swept[0]}:{record.id[:8]}"]
    (document,) = _json(capfd, *stored, "--every-tokens", step)
    assert tuple(_points(document)) == trace.curve
    (document,) = _json(capfd, *stored, "--every", "30")  # bytes, as of any text
    written = b"".join(trace.text_pieces)
    assert _points(document) == lil.curve(written, every_bytes=30) != tuple(trace.curve)
    assert main(["curve", str(text)]) == 0
    assert "ratio" in capfd.readouterr().out


def test_a_long_curve_is_a_table_one_can_read(capfd: CapFd, tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(bytes(range(256)) * 400)
    (document,) = _json(capfd, "curve", str(file), "--every", "100")
    points = document["points"]
    assert len(points) == 1024
    assert main(["curve", str(file), "--every", "100"]) == 0
    printed = capfd.readouterr().out
    assert "32 of 1,024 points; --json has them all" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(" ") and "—" in line]
    shown = [(int(row[1]), int(row[2])) for row in rows]
    known = [(p["original_bytes"], p["compressed_bytes"]) for p in points]
    assert shown[0] == known[0]
    assert shown[-1] == known[-1]
    assert len(shown) == 32
    assert set(shown) <= set(known)
    steps = {b - a for (a, _), (b, _) in itertools.pairwise(shown)}
    assert steps == {3300}  # equal ones: (1024 - 1) / 31 points of 100 bytes
    # What a line grew by is since the line above, so that together they are the whole.
    assert sum(int(row[4]) for row in rows) == known[-1][1]


def test_list_names_everything_with_its_source(capfd: CapFd) -> None:
    found = _json(capfd, "list")
    backends = found.pop("backends")
    assert {"full", "h2o", "sink", "quest", "infllm"} <= {b["name"] for b in backends}
    assert all(b["source"] and b["error"] is None for b in backends)
    assert "guardian" in found["detectors"]
    assert {"easy", "medium", "hard", "gsm8k", "math500", "aime"} <= set(found["datasets"])
    assert {"demo", "demo-small", "paper"} <= set(found["presets"])
    assert all(line for kind in found.values() for line in kind.values())
    assert set(_json(capfd, "list", "presets")) == {"presets"}
    # Whole sentences: a comment of several lines is not cut after its first.
    assert {"lz-paper", "wsc-paper"} <= set(found["presets"])
    assert all(line.endswith(".") for line in found["presets"].values())
    assert "Only runs in which a detector fires are decoded" in found["presets"]["actions"]


def test_a_chopper_cannot_be_replayed_where_its_notes_are_not(
    swept: tuple[Path, list[str]], capfd: CapFd
) -> None:
    store = str(swept[0])
    for given, words in (
        ("--detector chopper", ["detector = 'chopper'", "weights for", "lil chopper train"]),
        (
            "--set chopper.weights=experiments.reasoner:chopper-2.safetensors",
            ["detector = 'chopper'", "15 of 15", store, "--detector chopper added"],
        ),
    ):
        capfd.readouterr()
        assert main(["replay", store, *given.split()]) == 2
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        for word in words:
            assert word in err


def test_list_shows_parameters_and_packages(capfd: CapFd) -> None:
    (quest,) = [b for b in _json(capfd, "list", "backends")["backends"] if b["name"] == "quest"]
    assert quest["package"] == "lil-attention"
    budget, _, page, *_ = quest["parameters"]
    assert budget == {"name": "budget", "required": True, "default": None}
    assert page == {"name": "page", "required": False, "default": 16}
    capfd.readouterr()
    assert main(["list", "backends"]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert f"{quest['source']} budget, dense_layers=2, page=16" in printed


OTHER = """
from dataclasses import dataclass
from attention.methods.window import Window

@dataclass(frozen=True, kw_only=True)
class Method(Window):
    name = "other"
    source = "a window [bold]of another package"
    size: float = float("inf")
"""


def test_other_packages_are_listed_even_when_they_are_broken(
    capfd: CapFd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    for package, lines in (("good", "other = lil_good:Method"), ("bad", "bad = lil_bad:Method")):
        info = tmp_path / f"lil_{package}-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: lil-{package}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[lil.attention]\n{lines}\n")
    (tmp_path / "lil_good.py").write_text(OTHER)
    (tmp_path / "lil_bad.py").write_text("import nowhere_to_be_found\n")
    assert main(["list", "backends"]) == 0
    printed = capfd.readouterr().out
    assert "a window [bold]of another package" in printed
    assert "from lil-good 2.0" in printed
    assert "broken: expected lil_bad:Method of lil-bad 2.0 to import (ModuleNotFound" in printed
    by_name = {b["name"]: b for b in _json(capfd, "list", "backends")["backends"]}
    assert by_name["bad"]["package"] == "lil-bad 2.0"
    assert "nowhere_to_be_found" in by_name["bad"]["error"]
    assert by_name["quest"]["error"] is None
    size = {"name": "size", "required": False, "default": "inf"}
    assert by_name["other"]["parameters"][-1] == size
    assert main(["run", "--backend", "bad", "--budget", "8"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("lil: error: backend = 'bad': expected lil_bad:Method of lil-bad 2.0 to")


def test_a_backend_may_lie_in_the_folder_of_the_command(
    capfd: CapFd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lil_lies_here.py").write_text("Method = dict\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert main(["run", "--backend", "lil_lies_here:Method", "--budget", "8"]) == 2
    assert "a subclass of attention.Backend" in capfd.readouterr().err
    assert sys.path[-1] == ""  # behind all others, so that no file here hides a module


def test_json_may_stand_before_the_noun(capfd: CapFd) -> None:
    presets = _json(capfd, "list", "presets")
    assert main(["--json", "list", "presets"]) == 0
    assert json.loads(capfd.readouterr().out) == presets


def test_presets_are_described_in_sentences(capfd: CapFd) -> None:
    for name, line in _json(capfd, "list", "presets")["presets"].items():
        assert line.endswith("."), name
        assert preset_text(name).startswith(f"# {line[:40]}")


def test_without_a_noun_there_is_help_and_exit_code_2(capfd: CapFd) -> None:
    assert main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    for noun in entry.NOUNS:
        assert noun in err


@pytest.mark.parametrize("noun", list(entry.NOUNS))
def test_help_has_worked_examples(noun: str, capfd: CapFd) -> None:
    with pytest.raises(SystemExit) as stop:
        main([noun, "--help"])
    assert stop.value.code == 0
    out = capfd.readouterr().out
    assert "examples:" in out
    assert f"lil {noun}" in out
    assert "--json" in out


def test_every_flag_the_specification_names(capfd: CapFd) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    out = capfd.readouterr().out
    flags = (
        "--preset --model --dataset --backend --budget --limit --batch-size --seed --cap "
        "--max-new-tokens --temperature --top-p --samples-per-problem --dtype --device --revision "
        "--penalty --detector --out --json"
    )
    for flag in flags.split():
        assert f"{flag} " in out or f"{flag}\n" in out


def test_a_flag_of_a_list_is_understood_in_the_plural(capfd: CapFd) -> None:
    parser = Parser(prog="lil")
    parser.add_argument("--budget")
    parser.add_argument("--detectors")
    parser.add_argument("--sweep")
    parser.add_argument("--sweeps", action="store_true")
    args, left = parser.parse_known_args(
        ["--budgets=1,2", "--detector", "cycle", "--sweeps", "--models", "x", "--", "--budgets"]
    )
    assert (args.budget, args.detectors, args.sweep, args.sweeps) == ("1,2", "cycle", None, True)
    assert left == ["--models", "x", "--", "--budgets"]
    err = capfd.readouterr().err.splitlines()
    assert err == ["lil: --budgets is read as --budget", "lil: --detector is read as --detectors"]
    assert "--budgets" not in parser.format_help()


@pytest.mark.parametrize("noun", ["sweep", "run", "chopper"])
def test_help_tells_the_default_of_every_key(noun: str) -> None:
    parser = Parser(prog="lil")
    module = importlib.import_module(f"experiments.cli.commands.{noun}")
    module.add_arguments(parser)
    ours, other = ("chopper" if noun == "chopper" else "demo"), "paper"
    keys = {field.name for field in dataclasses.fields(Config)}
    flags = {action.dest: action for action in parser._actions if action.dest in keys}
    assert len(flags) >= 15
    for key, flag in flags.items():
        assert flag.help is not None
        told = flag.help.rpartition("(default: ")[2].removesuffix(")").partition("; with --model ")
        given = [flag.default] if flag.default else [getattr(load(p), key) for p in (ours, other)]
        # Typed in, what is told is the value that is taken.
        for text, value in zip(told[::2], given, strict=False):
            if text:
                assert check({key: text}, "help")[key] == check({key: value}, "preset")[key], key
        assert key == "models" or bool(told[2]) == (given[0] != given[-1])


def test_flags_of_the_chopper_are_its_classes() -> None:
    from experiments.cli.commands import chopper

    parser = Parser(prog="lil")
    chopper.add_arguments(parser)
    args = parser.parse_args(["train"])
    assert Labeller(**chopper._given(args, chopper._LABELS)).params() == Labeller().params()
    assert Training(**chopper._given(args, chopper._RECIPE)) == Training()
    args = parser.parse_args(["train", "--lr", "0.5", "--train-batch", "7", "--similarity", "0.7"])
    assert chopper._given(args, chopper._RECIPE)["lr"] == 0.5
    assert chopper._given(args, chopper._RECIPE)["batch_size"] == 7
    assert chopper._given(args, chopper._LABELS)["similarity"] == 0.7


@pytest.mark.usefixtures("no_figures")
def test_ctrl_c_leaves_with_130_and_the_next_sweep_goes_on(
    swept: tuple[Path, list[str]],
    tmp_path: Path,
    capfd: CapFd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, command = swept
    mine = [*command, "--out", str(tmp_path / "o"), "--limit", "1"]
    steps = 0

    def interrupt(_self: object, _tokens: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise KeyboardInterrupt

    from experiments.cli.progress import Bars

    with monkeypatch.context() as patch:
        patch.setattr(Bars, "step", interrupt)
        assert main(mine) == 130
    err = capfd.readouterr().err
    assert "interrupted" in err
    assert "Traceback" not in err
    status = manifest.read(tmp_path / "o")["status"]
    assert status == "interrupted"
    assert main(mine) == 0


@pytest.mark.usefixtures("no_figures")
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


def test_help_and_the_package_load_nothing_heavy() -> None:
    code = (
        "import sys, experiments, experiments.cli\n"
        "experiments.cli.main([])\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_scheduler_ends_a_sweep_as_ctrl_c_does(
    name: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), getattr(signal, name))

    monkeypatch.setattr(runner.Runner, "_decode_model", killed)
    out = tmp_path / "store"
    command = ["sweep", "--preset", "demo-small", "--model", str(tiny_model), "--limit", "1"]
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)  # nohup ignores one of them
    try:
        assert main([*command, "--max-new-tokens", "8", "--out", str(out)]) == 130
    finally:
        after = signal.signal(getattr(signal, name), before)
    assert after is signal.SIG_DFL
    assert "interrupted" in capfd.readouterr().err
    assert manifest.read(out)["status"] == "interrupted"


def test_figures_that_cannot_be_written_lose_nothing(
    swept: tuple[Path, list[str]], tmp_path: Path, capfd: CapFd, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = swept

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figures, "draw", full)
    capfd.readouterr()
    assert main(["report", str(out), "--json"]) == 2
    printed, said = capfd.readouterr()
    assert json.loads(printed)["rows"]
    assert said.count("lil: error: figures = ") == 1
    assert "No space left" in said
    assert main(["report", str(out), "--json", "--no-figures"]) == 0
    monkeypatch.undo()
    elsewhere = tmp_path / "pictures"
    shown = _json(capfd, "report", str(out), "--figures", str(elsewhere))["manifest"]["figures"]
    assert {Path(one).parent for one in shown} == {elsewhere}
    assert len(list(elsewhere.iterdir())) == len(shown) == 10

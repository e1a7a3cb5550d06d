"""Bad input on the command line: exit code 2, one message, no traceback, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.cli import main
from experiments.grid import mathematics
from experiments.grid.data.prompts import unknown_words
from experiments.store import manifest
from experiments.store.files import filesystem, records


@pytest.fixture
def place(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, problems, and things that are wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(tiny_model)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "a_file").write_text("not a folder")
    (tmp_path / "unknown_key.toml").write_text("bugdets = [32]\n")
    (tmp_path / "good.jsonl").write_text('{"question": "a", "answer": "1"}\n')
    headless = tmp_path / "headless"
    shutil.copytree(tiny_model, headless)
    config = json.loads((headless / "config.json").read_text())
    config["architectures"] = ["Qwen3Model"]
    (headless / "config.json").write_text(json.dumps(config))
    return tmp_path


# Each: what is wrong, the arguments, and what the one message must contain.
CASES = [
    ("unknown backend", "sweep --backend full,h20", ["backend", "'h20'", "did you mean 'h2o'"]),
    ("budget below sinks and window", "sweep --backend sink --budget 3", ["budget = 3", "sinks"]),
    ("budget that is no number", "sweep --budget 32,abc", ["budgets = 'abc'", "whole number"]),
    ("misspelt level", "sweep --dataset medum", ["dataset = 'medum'", "did you mean 'medium'"]),
    ("misspelt file", "sweep --dataset goood.jsonl", ["did you mean 'good.jsonl'"]),
    ("an offset", "sweep --offset -1", ["offset = "]),
    ("empty file", "sweep --dataset empty.jsonl", ["empty.jsonl", "at least one problem"]),
    ("model without a causal head", "sweep --model headless", ["headless", "causal", "Qwen3Model"]),
    ("misspelt model", "sweep --model raesoner", ["'raesoner'", "did you mean 'reasoner'"]),
    ("missing model folder", "sweep --model ./nowhere", ["model = './nowhere'", "folder"]),
    ("a file where the output goes", "sweep --out a_file/store", ["out", "a_file is a file"]),
    ("too many workers", "sweep --workers 2000", ["workers", "2000", "from 1 to 1024"]),
    ("misspelt rows", "sweep --batch-size aut", ["batch_size = 'aut'", "did you mean 'auto'"]),
    ("rows of several", "sweep --batch-size auto --workers 2", ["'auto'", "share the memory"]),
    ("unknown option", "sweep --bugdets 32", ["--bugdets", "did you mean '--budgets'"]),
    ("budget of pages", "compare --budget 50", ["quest takes 48", "multiple"]),
    ("another budget", "compare --backend quest(budget=64)", ["budget = ", "one budget"]),
    ("a prompt that stays", "compare --backend raas --budget 48", ["at most 32", "raas with keep"]),
    ("unknown noun", "sweeep", ["sweeep", "did you mean 'sweep'"]),
    ("unknown preset", "sweep --preset dmeo", ["preset = 'dmeo'", "did you mean 'demo'"]),
    ("unknown key", "sweep --preset unknown_key.toml", ["'bugdets'", "did you mean 'budgets'"]),
    (
        "a parameter without its table",
        "sweep --set distinct.n=60",
        ["'distinct.n=60'", "KEY=VALUE"],
    ),
    ("an empty name", "sweep --out=", ["out = ''"]),
    ("unknown parameter", "sweep --set backend_params.quest.pgae=8", ["pgae", "mean 'page'"]),
    ("bad detector value", "sweep --set detector_params.guardian.f=0", ["f = 0", "at least 1"]),
    ("an action", "sweep --detector guardian:anser", ["on_stop = 'anser'", "'answer'"]),
    ("an end that is no token", "sweep --detector margin(end='<x>')", ["for margin", "'<x>'"]),
    ("unknown penalty", "sweep --penalty none,lzz", ["penalty = 'lzz'", "did you mean 'lz'"]),
    ("two penalties at once", "run --penalty lz,dry", ["penalty = 'lz,dry'", "one penalty"]),
    (
        "a chopper without weights",
        "sweep --preset demo --detector chopper",
        ["detector = 'chopper'", "weights for model", "--detector guardian"],
    ),
    (
        "a system prompt",
        "sweep --system Hi --dataset good.jsonl --scorer exact",
        ["system", "chat template"],
    ),
    (
        "a name too long",
        f"sweep --dataset {'x' * 300}",
        ["dataset", "JSONL or CSV file that exists"],
    ),
    ("a scorer", "sweep --scorer maths", ["scorer = 'maths'", "did you mean 'math'"]),
    ("limit", "sweep --limit 0", ["limit = '0'", "at least 1"]),
    ("samples of greedy", "sweep --samples-per-problem 3", ["samples_per_problem", "temperature"]),
    ("a prompt and problems", "run --prompt 1 --dataset medium", ["dataset = ", "--prompt"]),
    ("a prompt and a limit", "run --prompt 1 --limit 2", ["limit = '2'", "--prompt"]),
    ("run without budget", "run --backend h2o", ["budget", "--budget N"]),
    ("a budget for nothing", "run --backend full --budget 64", ["budget = '64'", "every token"]),
    ("no store to replay", "replay nothing-here", ["store = 'nothing-here'", "lil sweep"]),
    ("no store to report", "report model", ["store = 'model'", "no sweeps in it"]),
    ("rows of no format", "report --rows rows.html", ["rows = 'rows.html'", ".tex"]),
    ("rows below a file", "report --rows ok.md --rows a_file/x.csv", ["a_file is a file"]),
    ("rows of no name", "report --rows=", ["rows = ''"]),
    ("one file twice", "report --csv x.csv --rows x.csv", ["rows = 'x.csv'", "of its own"]),
    ("curve of nothing", "curve nofile.txt", ["file = 'nofile.txt'", "readable"]),
    ("curve with a bad codec", "curve a_file --codec defalte", ["did you mean 'deflate'"]),
    ("bench of what was a part", "bench meter", ["backend = 'meter'", "gkv, h2o"]),
]


@pytest.mark.parametrize(("arguments", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_message_and_nothing_left_behind(
    place: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: str,
    words: list[str],
) -> None:
    typed = arguments.split()
    if typed[0] in ("sweep", "run") and "--model" not in typed:
        typed += ["--model", "model", *([] if "--preset" in typed else ["--preset", "demo-small"])]
    before = _listing(place)
    capfd.readouterr()
    try:
        code = main(typed)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capfd.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("lil: error: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err
    assert _listing(place) == before


def _listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_dry_run_without_the_judge_of_mathematics(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "good.jsonl").write_text('{"question": "a", "answer": "\\\\sqrt{x}+1"}\n')
    monkeypatch.setattr(mathematics, "is_installed", lambda: False)
    assert main(["sweep", "--dry-run", "--model", "model", "--dataset", "good.jsonl"]) == 2
    assert "math-verify" in capfd.readouterr().err


def test_words_that_the_model_does_not_know_are_reported(
    capfd: pytest.CaptureFixture[str],
) -> None:
    of = {"unk_token_id": 7, "unk_token": "<unk>", "bos_token_id": 1, "eos_token_id": 2}
    (notice,) = unknown_words(SimpleNamespace(**of), [[1, 7], [1, 3], [7, 7]], "mine")
    words = "hold words that the model does not know (<unk>)"
    assert notice.startswith(f"mine: 2 of 3 prompts {words}")
    assert not unknown_words(SimpleNamespace(**of), [[1, 3]], "mine")
    for own in ({"unk_token_id": None}, {"bos_token_id": 7}, {"eos_token_id": 7}):
        assert not unknown_words(SimpleNamespace(**of | own), [[1, 7]], "mine")
    assert main(["run", "--max-new-tokens", "2", "--prompt", "Explain it."]) == 0
    assert words in capfd.readouterr().err


def test_a_full_disk_is_one_message(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: object, _blob: bytes) -> int:
        with filesystem.filesystem_errors(place / "out"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.Writer, "write", refuse)
    small = ["--preset", "demo-small", "--limit", "1", "--max-new-tokens", "3", "--json"]
    code = main(["sweep", "--model", "model", "--out", "out", *small])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    (error,) = [line for line in err.splitlines() if line.startswith("lil: error")]
    assert "space left" in error
    assert "Traceback" not in err
    assert manifest.read(place / "out")["status"] == "failed"


def test_a_fault_of_ours_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from experiments.cli.commands import bench

    def broken(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(bench, "command", broken)
    with pytest.raises(ValueError, match="ours"):
        main(["bench"])
    assert "lil: error" not in capfd.readouterr().err

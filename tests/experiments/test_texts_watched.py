"""Detectors over texts that one has: `lil curve --detector`, `lil replay FILE`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from reasoner_training.tokenizer import build_tokenizer
from sweeping import go

import lil
from experiments.cli import main
from experiments.grid.presets import load
from experiments.store.store import Store

LOOP = "Riga is 4 . " * 200
PLAIN = "Riga takes 4 hours above Graz ."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer and no model."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    return str(folder)


def _pieces(text: str) -> list[bytes]:
    tokenizer = build_tokenizer()
    table = lil.token_bytes(tokenizer)
    return [table[i] for i in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _by_hand(text: str, detector: lil.Detector) -> tuple[int | None, int]:
    """Token by token: when it fires, and how many tokens are kept."""
    watcher, pieces = detector.watch(), _pieces(text)
    for piece in pieces:
        if (verdict := watcher.update([piece])) is not None:
            return verdict.step, verdict.token
    return None, len(pieces)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _texts(file: Path, *rows: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_texts_are_stopped_where_a_live_run_would_be(tokenizer, tmp_path, capsys):
    file = _texts(tmp_path / "t.jsonl", {"text": LOOP, "id": "loop"}, {"text": PLAIN})
    arguments = ("replay", file, "--tokenizer", tokenizer, "--detector", "guardian,cycle")
    told = _json(capsys, *arguments)
    assert [text["id"] for text in told["texts"]] == ["loop", "1"]
    for text, given in zip(told["texts"], (LOOP, PLAIN), strict=True):
        found = [(one["fired_at"], one["kept"]) for one in text["detectors"]]
        assert found == [_by_hand(given, lil.Guardian()), _by_hand(given, lil.Cycle())]
    loop, plain = told["texts"]
    assert loop["detectors"][0]["fired_at"] is not None
    assert plain["detectors"][0]["fired_at"] is None
    tokens = [len(_pieces(text)) for text in (LOOP, PLAIN)]
    kept = loop["detectors"][0]["kept"] + plain["detectors"][0]["kept"]
    first = told["detectors"][0]
    assert (first["name"], first["stopped"], first["texts"]) == ("guardian", 1, 2)
    assert first["token_savings"] == pytest.approx(1 - kept / sum(tokens))
    assert main([*arguments]) == 0
    out = capsys.readouterr().out
    assert "loop" in out
    assert f"{100 * first['token_savings']:.1f}%" in out


def test_other_parameters_columns_and_csv(tokenizer, tmp_path, capsys):
    file = tmp_path / "t.csv"
    file.write_text(f"words,prompt\n{LOOP},{PLAIN}\n")
    arguments = ("replay", str(file), "--tokenizer", tokenizer, "--column", "words")
    told = _json(capsys, *arguments, "--f", "50,100")
    for one, f in zip(told["texts"][0]["detectors"], (50, 100), strict=True):
        watcher = lil.Guardian(f=f).watch(PLAIN.encode())
        verdict = watcher.update(_pieces(LOOP))
        assert (one["fired_at"], one["kept"]) == (verdict.step, verdict.token)


@pytest.mark.parametrize(
    ("row", "more", "words"),
    [
        ({"text": "a"}, (), "--tokenizer MODEL for texts"),
        ({"words": "a"}, ("--tokenizer", "T"), "a column text or output"),
        ({"text": 3}, ("--tokenizer", "T"), "text in line 1"),
        ({"text": "a"}, ("--tokenizer", "T", "--column", "txt"), "did you mean 'text'"),
        ({"text": "a"}, ("--tokenizer", "T", "--detector", "margin"), "reads texts"),
        ({"text": "a"}, ("--tokenizer", "T", "--detector", "guardian(f=9):answer"), "not decoded"),
        ({"text": "a"}, ("--tokenizer", "/nowhere"), "a folder with a tokenizer"),
        ({"text": "a"}, ("--tokenizer", "T", "--check-live"), "a store for --check-live"),
        ({"text": "a", "prompt": 3}, ("--tokenizer", "T"), "prompt in line 1"),
    ],
)
def test_what_cannot_be_watched_is_refused(tokenizer, tmp_path, capsys, row, more, words):
    file = _texts(tmp_path / "t.jsonl", row)
    given = [tokenizer if one == "T" else one for one in more]
    assert main(["replay", file, *given]) == 2
    assert words in capsys.readouterr().err


def test_a_curve_says_where_a_text_would_have_been_stopped(tokenizer, tmp_path, capsys):
    file = tmp_path / "loop.txt"
    file.write_text(LOOP)
    plot = tmp_path / "curve.svg"
    asked = ("--detector", "guardian(f=50),cycle", "--tokenizer", tokenizer)
    (told,) = _json(capsys, "curve", str(file), *asked, "--plot", str(plot))
    found = [(one["fired_at"], one["kept"]) for one in told["detectors"]]
    assert found == [_by_hand(LOOP, lil.Guardian(f=50)), _by_hand(LOOP, lil.Cycle())]
    kept = told["detectors"][0]["kept"]
    assert told["detectors"][0]["kept_bytes"] == len(b"".join(_pieces(LOOP)[:kept]))
    marked = plot.read_text()
    (unmarked,) = _json(capsys, "curve", str(file), "--plot", str(plot))
    assert len(marked) > len(plot.read_text())
    assert "detectors" not in unmarked
    assert main(["curve", str(file), *asked]) == 0
    assert f"stops it at token {found[0][0]:,} of" in capsys.readouterr().out
    for wrong in (asked[:2], asked[2:], ("--detector", "margin", "--tokenizer", tokenizer)):
        assert main(["curve", str(file), *wrong]) == 2


def test_a_stored_trace_has_its_own_tokens(tiny_model, tmp_path, capsys):
    values = {"models": str(tiny_model), "datasets": "easy", "limit": 2, "backends": "full"}
    go(load("demo-small", {**values, "max_new_tokens": 60, "threads": 1}), tmp_path / "out")
    record = max(Store(tmp_path / "out"), key=lambda one: one.meta["tokens"])
    detector = lil.Guardian(f=10, rate=0.9)
    asked = ("--detector", "guardian(f=10, rate=0.9)")
    (told,) = _json(capsys, "curve", f"{tmp_path / 'out'}:{record.id}", *asked)
    verdict = lil.replay(record.trace(), detector)
    (one,) = told["detectors"]
    assert one["fired_at"] == (None if verdict is None else verdict.step)


def test_standard_input_is_a_text(monkeypatch, capsys):
    given = io.TextIOWrapper(io.BytesIO(LOOP.encode()))
    monkeypatch.setattr("sys.stdin", given)
    (told,) = _json(capsys, "curve", "-", "--every", "500")
    assert told["points"][-1]["original_bytes"] == len(LOOP)


def test_a_store_takes_no_tokenizer(tmp_path, capsys):
    assert main(["replay", str(tmp_path), "--tokenizer", "reasoner"]) == 2
    assert "is no file of texts" in capsys.readouterr().err

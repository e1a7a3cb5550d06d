"""Kinds of endings, on texts of which it is known how they were made."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_readings import counted, ending, main, numbers_alike

from experiments.cli import main as lil
from experiments.store.study import Study

WORDS = [b" the", b" cat", b" sat", b" on", b" a", b" mat", b".", b" so", b" it", b" was", b" then"]


def _ids(pieces: list[bytes]) -> list[int]:
    table = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    return [table[piece] for piece in pieces]


def _prose(count: int, seed: int = 0) -> list[bytes]:
    """Words that never stand in the same order for long."""
    drawn = random.Random(seed)
    return [
        b" w%c%c" % (drawn.choice(b"abcdefgh"), drawn.choice(b"abcdefgh")) for _ in range(count)
    ]


def _of(pieces: list[bytes], cut: bool = True) -> tuple[str, int | None]:
    return ending(pieces, _ids(pieces), cut)


def test_a_text_that_ended_is_no_loop_whatever_it_says() -> None:
    assert _of([b" again"] * 400, cut=False) == ("ended", None)


@pytest.mark.parametrize("period", [1, 7, 50])
def test_the_same_words_over_and_over(period: int) -> None:
    head, block = _prose(60), _prose(period, seed=1)
    text = [*head, *(block * 300)[: 2 * period + 110]]
    assert _of(text) == ("exact", 60 + period)


def test_numbers_that_count_on() -> None:
    head = _prose(60)
    rounds = [[b" Step", b" 1", *(b"%d" % digit for digit in divmod(n, 10)), b" is", b" done", b"."]
              for n in range(40)]  # fmt: skip
    text = [*head, *(piece for one in rounds for piece in one)]
    kind, onset = _of(text)
    assert (kind, onset) == ("counting", 60 + 7)


def test_words_that_change_now_and_then() -> None:
    head, block = _prose(60), _prose(60, seed=2)
    text = list(head)
    for turn in range(8):
        text += [*block, b" x%c" % (97 + turn) if turn % 4 == 3 else b" y"]
    kind, onset = _of(text)
    assert kind == "reworded"
    assert onset is not None
    assert 60 < onset < 60 + 3 * 61


def test_long_texts_are_not_loops() -> None:
    assert _of(_prose(600)) == ("long", None)
    # A loop too short to be one: fewer than 100 tokens again.
    assert _of([*_prose(300), *(_prose(9, seed=3) * 5)]) == ("long", None)


@given(st.lists(st.sampled_from([*WORDS, b" 1", b"2", b"34", b" x5"]), max_size=60))
def test_numbers_alike_keeps_words_and_places(pieces: list[bytes]) -> None:
    symbols, starts = numbers_alike(pieces)
    assert len(symbols) == len(starts)
    assert starts == sorted(set(starts))
    assert [s for s in symbols if s != b"#"] == [p for p in pieces if not any(
        chr(c).isdigit() for c in p)]  # fmt: skip
    # Each place left out is a digit that goes on with a number.
    for at in set(range(len(pieces))) - set(starts):
        assert pieces[at].isdigit()
        assert any(chr(c).isdigit() for c in pieces[at - 1])


def test_a_store_is_counted(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "out")
    flags = [
        *("sweep", "--preset", "demo-small", "--model", str(tiny_model), "--dataset", "easy"),
        *("--limit", "3", "--max-new-tokens", "400", "--cap", "400", "--backend", "full,h2o"),
        *("--detector", "budget(tokens=150)", "--budget", "8", "--no-figures", "--no-page"),
    ]
    assert lil([*flags, "--json", "--out", store]) == 0
    rows = counted(Study.open(Path(store)))
    assert [row["backend"] for row in rows] == ["full", "h2o"]
    for row in rows:
        assert row["n"] == 3 == sum(row[kind] for kind in (
            "ended", "exact", "counting", "reworded", "long"))  # fmt: skip
        (seen,) = row["detectors"]
        assert seen["loops"] == row["exact"] + row["counting"] + row["reworded"]
        # A budget of tokens stops whatever is longer.
        assert seen["caught"] == seen["loops"]
        assert seen["ended"] == row["ended"]
    capsys.readouterr()
    assert main([store]) == 0
    assert "3 outputs" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2

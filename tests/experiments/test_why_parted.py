"""What heals texts that parted: the counts of `why_parted.py` and what the page says of them."""

from __future__ import annotations

from typing import Any

import study_sentences
import study_short_tables
import why_parted


def line(backend: str, missed: bool, drawn: bool, agreed: int = 7) -> dict[str, Any]:
    """A text, and whether each key that is put back heals it."""
    tried = [
        {"keys": 1, "control": control, "healed": healed, "agreed_tokens": agreed,
         "to_the_end": agreed > 50}
        for control, healed in ((False, missed), (True, drawn))
    ]  # fmt: skip
    return {
        "backend": backend, "reproduced": True, "missed": 0.5, "missed_in_prompt": 0.25,
        "seconds": 2.0, "put_back": tried,
    }  # fmt: skip


def told(*lines: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The summary of some lines, and its sentence."""
    found = {"why": why_parted.summary([*lines])}
    return found["why"], study_sentences.put_back(found)


def test_missed_keys_that_heal() -> None:
    quest = [line("quest", missed=True, drawn=False, agreed=at) for at in range(48, 58)]
    rolled = line("sink", missed=False, drawn=False) | {"put_back": []}
    found, sentence = told(*quest, line("h2o", missed=False, drawn=False), rolled,
                           line("oracle", missed=False, drawn=True))  # fmt: skip
    methods = found["methods"]
    assert (methods["runs"], methods["only_missed"], methods["only_drawn"]) == (11, 10, 0)
    assert (methods["agreed"], methods["to_the_end"]) == (52.5, 7)
    assert found["sink"]["healed"] == {}
    assert found["oracle"]["only_drawn"] == 1
    assert "Of 11 texts of quest and h2o" in sentence
    assert "more often than with a key drawn at random" in sentence
    table = study_short_tables.why({"why": found})
    names = [row.split("|")[1].strip() for row in table.splitlines()]
    assert names[2:] == ["quest", "h2o", "sink", "methods", "oracle"]


def test_keys_that_do_as_much_as_any_are_not_called_why() -> None:
    """As where what is put back has no effect: some heal, and as many with any other key."""
    half = [line("quest", missed=at % 2 == 0, drawn=at % 2 == 1) for at in range(40)]
    _, sentence = told(*half)
    assert "which cannot be told apart from what happens with a key drawn at random" in sentence
    worse = [line("quest", missed=False, drawn=True) for _ in range(20)]
    assert "more often" not in told(*worse)[1]
    assert study_sentences.put_back({}) == ""

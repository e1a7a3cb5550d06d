"""docs/families.md says what was found of each kind of model, and README says of how many."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pages" / "families_page.py"))
FOUND = json.loads((ROOT / "docs" / "families.json").read_text())
PAGE = (ROOT / "docs" / "families.md").read_text()


def test_the_tables_are_what_the_script_writes() -> None:
    assert SCRIPT["rendered"](FOUND).strip() in PAGE, "run scripts/pages/families_page.py"


def test_the_readme_counts_what_is_taken() -> None:
    told = re.search(r"\((\d+) of (\d+) kinds that were tried", (ROOT / "README.md").read_text())
    assert told is not None
    assert int(told[1]) == sum("refused" not in row for row in FOUND["families"].values())
    assert int(told[2]) == len(FOUND["families"])


def test_what_the_page_says_of_the_probe_is_what_it_does() -> None:
    from attention.patching import probe

    text = re.sub(r"\s+", " ", PAGE)
    numbers = {str(kind).split(".")[1]: x for kind, x in probe.TOLERANCE.items()}
    said = re.search(r"differ by (\S+) of their length in float64, (\S+) in float32", text)
    more = re.search(r"float32, (\S+) in bfloat16 and (\S+) in float16", text)
    assert said is not None
    assert more is not None
    kinds = ("float64", "float32", "bfloat16", "float16")
    told = dict(zip(kinds, said.groups() + more.groups(), strict=True))
    assert {kind: float(x) for kind, x in told.items()} == numbers
    assert sum(probe._PARTS) == 9
    # The survey, the two texts alone, and the parts of the batch.
    assert 1 + 2 + len(probe._PARTS) == 6
    assert "in six forwards of at most nine columns" in text

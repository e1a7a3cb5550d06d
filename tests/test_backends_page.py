"""docs/backends.md says what the backends do."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import pytest

import attention
import attention.methods
import attention.registry
from attention.testing import tiny_model
from attention.testing.driving import follow, text

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pages" / "backends_page.py"))
PAGE = (ROOT / "docs" / "backends.md").read_text()
TABLE = SCRIPT["table"](PAGE)
OWN = [k.name for k in attention.methods.known() if k.package == attention.registry.OWN]


def default(name: str, budget: int = 32) -> attention.Backend:
    """A backend of this budget with the defaults of everything else."""
    more = {"dense_layers": 0} if "`dense_layers=" in TABLE[name]["parameters"] else {}
    return attention.get(name, **({} if name in ("full", "dither") else {"budget": budget} | more))


def test_the_page_has_every_backend_with_its_parameters() -> None:
    assert sorted(TABLE) == OWN
    assert SCRIPT["rendered"](PAGE) == PAGE, "run scripts/pages/backends_page.py"
    assert SCRIPT["declared"]("quest").startswith("`budget`, `dense_layers=2`, `page=16`")
    spoilt = PAGE.replace("`page=16`", "`page=8`", 1)
    assert SCRIPT["rendered"](spoilt) == PAGE


@pytest.mark.parametrize("name", OWN)
def test_sources_and_kinds_are_those_declared(name: str) -> None:
    kind = attention.methods.find(name)
    row = TABLE[name]
    papers = re.compile(r"arXiv (\d{4}\.\d{5})")
    declared = set(papers.findall(f"{kind.source} {kind.__doc__}"))
    assert set(papers.findall(row["source"])) == declared
    control = kind.source.startswith("control")
    assert row["kind"].split(";")[0] == (
        "reference" if name == "full" else "control" if control else "method"
    )


@pytest.mark.parametrize("name", OWN)
def test_what_is_kept_read_and_exact_is_so(name: str) -> None:
    backend, row, m = default(name), TABLE[name], tiny_model()
    exact = row["exact up to"].split(",")[0].split(" with ")[0].strip("`")
    assert backend.exact_until == {"all": math.inf, "0": 0, **backend.params()}[exact]
    prompt = text(40) if name != "raas" else text(10)  # a longer one is refused by default
    with backend.on(m) as cache:
        follow(m, cache, [prompt], text(1, 44))
        kept, read = (len(x[0][0]) for x in (cache.kept_positions(1), cache.read_positions(1)))
    seen = len(prompt) + 44
    assert (kept == seen) == (row["keeps"] == "all")
    reads = row["a decode query reads"]
    assert (read == seen) == reads.startswith("all")
    assert read == seen or read <= 32
    if reads == "what is kept":
        # One goes as the next comes, or many at once after they were read.
        assert kept in (read - 1, read) or kept <= 32 - 8

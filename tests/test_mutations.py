"""docs/properties.md lists the mutations that its script applies, and each still applies."""

from __future__ import annotations

import shutil
from pathlib import Path

import mutations
import pytest

ROOT = Path(__file__).resolve().parents[1]
LISTED = mutations.mutations()


def test_the_page_lists_those_that_are_applied() -> None:
    rows = [
        [cell.strip(" `") if place != 2 else cell.strip() for place, cell in enumerate(cells)]
        for line in (ROOT / "docs" / "properties.md").read_text().splitlines()
        if line.startswith("| ") and len(cells := line.strip("|").split("|")) == 4
    ][1:]
    folder = ROOT / "tests" / "attention" / "properties"
    shown = [((folder / file).resolve(), says, red) for _, file, says, red in rows]
    applied = [
        (ROOT / x.test.partition("::")[0], x.says, "slow" if x.slow else "fast") for x in LISTED
    ]
    assert shown == applied
    assert len(applied) == 55


def test_each_of_them_applies_to_the_code_as_it_stands(tmp_path: Path) -> None:
    for mutation in LISTED:
        file, _, name = mutation.test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), mutation.test
        for edit in mutation.edits:
            (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / edit.file, tmp_path / edit.file)
        before = [(tmp_path / edit.file).read_text() for edit in mutation.edits]
        for edit in mutation.edits:
            edit.apply(tmp_path)
        after = [(tmp_path / edit.file).read_text() for edit in mutation.edits]
        assert all(a != b for a, b in zip(after, before, strict=True)), mutation.says


def test_what_does_not_stand_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for old in ("x = 1", "y"):
        with pytest.raises(ValueError, match="stands there"):
            mutations.Edit("a.py", old, "z").apply(tmp_path)


@pytest.mark.slow
def test_what_a_test_sees_is_told_from_what_it_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutations.main(["--only", "test_kernels.py"]) == 0
    assert capsys.readouterr().out.startswith("red ")
    harmless = tmp_path / "harmless.toml"
    harmless.write_text(
        '[[mutation]]\ntest = "tests/lil/test_curve.py"\nsays = "another word"\n'
        '[[mutation.edit]]\nfile = "lil/compression/curves.py"\n'
        "old = 'from __future__ import annotations'\n"
        "new = 'from __future__ import annotations  # of all'\n"
    )
    assert mutations.main([str(harmless)]) == 1
    assert capsys.readouterr().out.startswith("GREEN ")

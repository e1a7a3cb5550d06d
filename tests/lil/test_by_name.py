"""Codecs, detectors and penalties by name: whatever file lies in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lil import detectors, penalties
from lil.compression import codecs


@pytest.mark.parametrize("package", [codecs, detectors, penalties])
def test_every_public_file_has_a_name_and_a_line(package):
    folder = Path(package.__file__).parent
    paths = (*folder.glob("[!_]*.py"), *folder.glob("[!_]*/[!_]*.py"))
    files = sorted(path.stem for path in paths if path.parent.name != "base")
    assert package.names() == files
    assert [entry.name for entry in package.known() if entry.line] == files

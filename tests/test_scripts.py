"""Every script starts in its room: it finds what it imports, by itself and from another folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
ROOMS = ("bench", "checks", "fetching", "measuring", "pages", "training")
PROGRAMS = [
    str(file.relative_to(SCRIPTS))
    for room in ROOMS
    for file in sorted((SCRIPTS / room).glob("*.py"))
    if 'if __name__ == "__main__":' in file.read_text()
]


def test_modules_of_the_rooms_have_names_of_their_own() -> None:
    """Tests import them by name, from all rooms at once, and none may hide another or a package."""
    names = [
        entry.stem
        for room in ROOMS
        for entry in (SCRIPTS / room).iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").is_file()
    ]
    assert len(PROGRAMS) > 20
    assert sorted(names) == sorted({*names} - {"attention", "lil", "experiments"})
    assert not {*names} & sys.stdlib_module_names


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_starts(program: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / program), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout

"""The pages: their code and commands run, their links resolve, their numbers have a source."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from documents import anchors, blocks, commands, files, matches, quoted, run

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: models.md has its own test with the harness (tests/experiments/test_harness.py).
TUTORIALS = [
    page
    for page in PAGES
    if page.name != "models.md" and any(block.language == "console" for block in blocks(page))
]
SHELL = [
    (page, line)
    for page in PAGES
    for block in blocks(page)
    if block.language == "bash"
    for line in block.text.splitlines()
    if line.strip()
]


def test_links_and_paths_resolve() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith("https://"):
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)
        if page.name == "log.md":  # speaks of files that are gone
            continue
        for path in re.findall(
            r"`((?:scripts|docs|lil|attention|experiments|tests)/[\w./-]+)`", text
        ):
            assert (ROOT / path).exists(), (page, path)


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "STUDY.md"], ids=lambda page: page.name)
def test_numbers_in_prose_are_those_of_the_results(page: Path) -> None:
    markers = list(quoted(page))
    assert len(markers) > 5
    for marker, printed, values in markers:
        for text, value in zip(printed, values, strict=True):
            digits = len(text.partition(".")[2])
            number = abs(float(text.replace(",", "")))
            assert abs(number - abs(value)) <= 0.5001 * 10**-digits, (marker, text, value)


def test_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    lines = [line for page, line in SHELL if page == README]
    assert {"scripts/demo", "scripts/test"} < set(lines)
    for line in lines:
        if line.startswith("scripts/"):
            assert os.access(ROOT / line.split()[0], os.X_OK)


def test_pages_name_only_flags_that_exist() -> None:
    from experiments.cli.commands import sweep
    from experiments.cli.parser import Parser

    parser = Parser(prog="lil sweep")
    sweep.add_arguments(parser)
    lines = [line for _, line in SHELL if line.startswith("lil sweep ")]
    assert len(lines) > 5
    for line in lines:
        arguments = re.sub(r'"\$\(.*?\)"', "MODEL", line).split()[2:]
        assert not parser.parse_known_args(arguments)[1], line


def test_the_tutorial_shows_the_package_that_is_tested() -> None:
    shown = files(ROOT / "docs" / "write_a_method.md")
    for path in ("l2norm.py", "pyproject.toml"):
        assert shown[path] == (ROOT / "tests/third_party/lil-l2norm" / path).read_text()


def test_output_is_compared() -> None:
    assert matches("a ... d\n...\nlast\n", "a b c  d\n\nx\ny\nlast\n")
    assert not matches("a ... d\n", "a b\nd\n")
    assert not matches("1.5\n", "1x5\n")


def test_readme_commands_without_a_model_run(tmp_path: Path) -> None:
    """In order and in one folder: later lines use the store of earlier ones."""
    lines = [line for page, line in SHELL if page == README and line.startswith("lil ")]
    for line in lines:
        if "--model" in line:  # needs a GPU and the hub
            continue
        done = run(line, tmp_path, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert done.stdout.strip(), line


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_readme_python_runs(number: int, tmp_path: Path) -> None:
    code = [block.text for block in blocks(README) if block.language == "python"][number]
    (tmp_path / "example.py").write_text(code)
    done = run("python example.py", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_a_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    folder, site = tmp_path / "work", tmp_path / "site"
    folder.mkdir(), site.mkdir()
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "console":
            for command in commands(block):
                done = run(command.command, folder, site)
                where = f"line {command.line}: {command.command}"
                assert done.returncode == 0, f"{where}\n{done.stderr}"
                assert matches(command.shown, done.stdout), (
                    f"{where} printed\n{done.stdout}\nnot\n{command.shown}"
                )

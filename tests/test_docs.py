"""The pages: their code and commands run, their links resolve, their numbers have a source."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from documents import anchors, blocks, commands, matches, quoted, run

from attention.methods import METHODS
from experiments.cli import main
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample

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


@pytest.mark.parametrize("name", ["../README", "STUDY", "detectors", "real_models"])
def test_numbers_in_prose_are_those_of_the_results(name: str) -> None:
    for marker, printed, values in quoted(ROOT / "docs" / f"{name}.md"):
        for text, value in zip(printed, values, strict=True):
            digits = len(text.partition(".")[2])
            number = abs(float(text.replace(",", "")))
            assert abs(number - abs(value)) <= 0.5001 * 10**-digits, (marker, text, value)


def test_pages_name_only_flags_that_exist() -> None:
    from experiments.cli.commands import sweep
    from experiments.cli.parser import Parser

    parser = Parser(prog="lil sweep")
    sweep.add_arguments(parser)
    for line in [line for _, line in SHELL if line.startswith("lil sweep ")]:
        arguments = re.sub(r'"\$\(.*?\)"', "MODEL", line).split()[2:]
        assert not parser.parse_known_args(arguments)[1], line


def rows(page: str, title: str = "") -> list[list[str]]:
    """The cells of the tables below a page's heading, of rows that begin with a name."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0] if title else text
    return [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(("title", "record"), [("Samples", Sample), ("Configurations", ReportRow)])
def test_columns_are_those_of_the_exports(title: str, record: type) -> None:
    named = [name for row in rows("measures.md", title) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(field.name for field in fields(record))


def test_methods_have_the_parameters_of_the_table() -> None:
    common = {"budget", "dense_layers", "budgets", "pyramid", "share", "least", "keep_prompt"}
    for name, *_, parameters, _, _, _ in rows("methods.md"):
        method = METHODS.find(name.strip("| `"))
        named = set(re.findall(r"`(\w+)=", parameters)) - common
        assert named == {x.name for x in fields(method) if x.init} - common, name


def test_readme_commands_without_a_model_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order and in one folder: later lines use the store of earlier ones."""
    monkeypatch.chdir(tmp_path)
    lines = [line for page, line in SHELL if page == README]
    assert {"scripts/demo", "scripts/test"} < set(lines)
    for line in lines:
        if not line.startswith("lil ") or "--model" in line:  # a model needs a GPU and the hub
            continue
        assert main(shlex.split(line)[1:]) == 0, line


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_readme_python_runs(number: int, tmp_path: Path) -> None:
    code = [block.text for block in blocks(README) if block.language == "python"][number]
    (tmp_path / "example.py").write_text(code)
    done = run("python example.py", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr


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

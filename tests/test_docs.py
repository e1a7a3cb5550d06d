"""Every file, command and link of the documents works, and commands print what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import Command, blocks, commands, files, matches, run

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "new_backend.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_tutorial_shows_the_package_that_is_tested() -> None:
    shown = files(TUTORIAL)
    for path in ("l2norm.py", "pyproject.toml"):
        assert shown[path] == (ROOT / "tests/third_party/lil-l2norm" / path).read_text()


def test_every_block_is_a_file_or_commands() -> None:
    found = list(blocks(TUTORIAL))
    assert all(b.file or b.language == "console" for b in found)
    assert len(found) == TUTORIAL.read_text().count("```") / 2
    assert {b.language for b in found} == {"python", "toml", "console"}
    nouns = {c.command.split()[1] for b in found if not b.file for c in commands(b)}
    assert {"run", "sweep", "list", "install"} <= nouns


def test_the_tutorial_names_every_check_and_hook() -> None:
    from attention.testing import CHECKS

    text = TUTORIAL.read_text()
    table = text[text.index("## What a method should pass") :]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]
    assert rows == [f"`{name}`" for name in CHECKS]


@pytest.mark.parametrize("page", ["new_detector.md", "new_penalty.md"])
def test_the_short_pages_are_short_and_all_of_them_runs(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert len(text.splitlines()) < 240
    parts = list(blocks(ROOT / "docs" / page))
    assert all(b.file or b.language == "console" for b in parts)
    assert len(parts) == text.count("```") / 2


def test_the_page_of_experiments_names_only_flags_there_are() -> None:
    from experiments.cli.commands import sweep
    from experiments.cli.parser import Parser
    from experiments.grid.presets import load

    page = ROOT / "docs" / "experiments.md"
    assert len(page.read_text().splitlines()) < 225
    parser = Parser(prog="lil sweep")
    sweep.add_arguments(parser)
    lines = [
        line
        for block in blocks(page)
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    assert len(lines) >= 4
    for line in lines:
        noun, *arguments = line.removeprefix("lil ").split()
        assert noun == "sweep"
        args, unknown = parser.parse_known_args(arguments)
        assert not unknown, line
        given = {key: getattr(args, key) for key in ("sample", "columns", "device_map", "dtype")}
        load("paper", {key: value for key, value in given.items() if value is not None})


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "new_backend.md",
        "new_detector.md",
        "new_penalty.md",
        "experiments.md",
        "own_data.md",
        "lossless.md",
    ],
)
def test_the_tutorial_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    folder, site = tmp_path / "work", tmp_path / "site"
    folder.mkdir(), site.mkdir()
    ran = 0
    for block in blocks(ROOT / "docs" / page):
        if block.file:
            (folder / block.file).write_text(block.text)
            continue
        if block.language == "bash":  # needs a GPU, or hours
            continue
        for one in commands(block):
            done = run(one.command, folder, site)
            assert done.returncode == 0, f"line {one.line}: {one.command}\n{done.stderr}"
            assert matches(one.shown, done.stdout), (
                f"line {one.line}: {one.command} printed\n{done.stdout}\nnot\n{one.shown}"
            )
            ran += 1
    assert ran > 1


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b\n", "a   b  \n", True),
        ("a b\n", "a c\n", False),
        ("a\n", "a\nb\n", False),
        ("a ... d\n", "a b c d\n", True),
        ("a ... d\n", "a b\nd\n", False),
        ("...\nlast\n", "one\n\ntwo\nlast\n", True),
        ("...\nlast\n", "last\n", True),
        ("first\n...\n", "second\nfirst\n", False),
        ("", "", True),
        ("", "something\n", False),
        ("1.5\n", "1x5\n", False),
    ],
)
def test_output_is_compared(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) == same


def test_commands_are_told_from_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n```console\n$ lil list\none\n...\n$ lil run\n```\n")
    (block,) = blocks(page)
    assert commands(block) == [Command(3, "lil list", "one\n...\n"), Command(6, "lil run", "")]
    with pytest.raises(ValueError, match="not lil"):
        run("rm x", tmp_path, tmp_path)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as a code host makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def test_links_and_paths_lead_somewhere() -> None:
    links, paths = 0, 0
    for page in PAGES:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith("https://"):
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)
            links += 1
        found = re.findall(r"`((?:scripts|docs|lil|attention|experiments|tests)/[\w./-]+)`", text)
        for path in found:
            assert (ROOT / path).exists(), (page, path)
        paths += len(found)
    assert links > 40
    assert paths > 50

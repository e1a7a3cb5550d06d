"""How large the house is and how easily it is walked: counts of one checkout or of several.

    python scripts/checks/house.py                 # this checkout
    python scripts/checks/house.py OTHER .         # two, beside each other

Lines of code are those with more on them than blanks, a comment or a docstring. A file with one
importer is a module that one other module of the packages imports, packages' own `__init__` files
aside. A class name is used twice where two modules define a public class of it. Public names are
public classes and functions of modules.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("attention", "lil", "experiments")
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """Lines of a file that are code."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def module_name(root: Path, file: Path) -> str:
    """`a.b` of a/b.py and of a/b/__init__.py."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(module: str, is_package: bool, tree: ast.Module) -> Iterator[str]:
    """Full names that a module's imports name, modules or what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: None if is_package else -1]
            start = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*start, *(node.module or "").split(".")]).strip(".")
            yield from (f"{source}.{alias.name}" for alias in node.names)


def importers(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Each module and those that import it."""
    modules = {module_name(root, file): file for file in trees}
    found: dict[str, set[str]] = defaultdict(set)
    for module, file in modules.items():
        for name in imported(module, file.stem == "__init__", trees[file]):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                found[target].add(module)
    return found


def counts(root: Path) -> dict[str, int]:
    """All counts of a checkout."""
    texts = {
        file: file.read_text(encoding="utf-8")
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }
    trees = {file: ast.parse(text) for file, text in texts.items()}
    found = {
        f"code lines of {package}": sum(
            code_lines(text) for file, text in texts.items() if file.is_relative_to(root / package)
        )
        for package in PACKAGES
    }
    by = importers(root, trees)
    single = [
        file
        for file in trees
        if file.stem != "__init__" and len(by.get(module_name(root, file), ())) == 1
    ]
    top = [node for tree in trees.values() for node in tree.body]
    public = [
        node
        for node in top
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]
    classes = Counter(node.name for node in public if isinstance(node, ast.ClassDef))
    everything = "\n".join(texts.values())
    own = "\n".join(t for f, t in texts.items() if f.is_relative_to(root / "experiments"))
    tests = [file.read_text(encoding="utf-8") for file in (root / "tests").rglob("*.py")]
    scripts = [file.read_text(encoding="utf-8") for file in (root / "scripts").rglob("*.py")]
    return {
        "code lines of the packages": sum(found.values()),
        **found,
        "lines of the packages": sum(len(text.splitlines()) for text in texts.values()),
        "files of the packages": len(texts),
        "files with one importer": len(single),
        "class names used twice": sum(n > 1 for n in classes.values()),
        "public names": len(public),
        "type: ignore": len(re.findall(r"#\s*type:\s*ignore", everything)),
        "dict[str, Any] in experiments": own.count("dict[str, Any]"),
        "code lines of scripts": sum(map(code_lines, scripts)),
        "lines of tests": sum(len(text.splitlines()) for text in tests),
        "code lines of tests": sum(map(code_lines, tests)),
    }


def main(argv: list[str] | None = None) -> int:
    """Print a column for each checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], help="folders")
    parser.add_argument("--json", action="store_true", help="one object for each, in a list")
    args = parser.parse_args(argv)
    for folder in args.checkouts:
        if not (folder / PACKAGES[0]).is_dir():
            parser.error(f"{folder}: expected a checkout of this project")
    found = [counts(folder.resolve()) for folder in args.checkouts]
    if args.json:
        print(json.dumps(found))
        return 0
    for name in found[0]:
        print(f"{name:32}" + "".join(f"{one[name]:>10,}" for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

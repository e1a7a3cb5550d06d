"""Count the lines of logic of attention methods: how much there is to write for a new one.

    python scripts/count_logic.py                  # tova, random, quest, h2o
    python scripts/count_logic.py sink mine.py     # any methods, by name or file
    python scripts/count_logic.py --packages       # how large the packages are
    python scripts/count_logic.py --packages --against OTHER    # beside another checkout

A line of logic is a line of a file, formatted at 100 columns, that holds code. Blank lines,
comments and docstrings are not counted. Three numbers, from narrow to wide:

question  the bodies of the methods of the layer's class and of the functions beside it: which slots
          lose, or which slots for this query, with their accounting and options. `def` lines and
          the backend's dataclass are left out.
class     the same with the lines of `class`, `def`, their arguments and decorators.
file      every line of code of the file: imports, parameters and their checks too.

What a method calls in a rung or in another module is counted nowhere.

With `--packages`: lines of code of the packages and of the tests, modules, public names (what a
module defines or lists in `__all__`, without an underscore in front), and lines of code of a few
files, wherever in their package they stand.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
METHODS = ROOT / "attention" / "methods"
PACKAGES = ("attention", "lil", "experiments")
FILES = {"attention": ("tova", "quest", "h2o"), "lil": ("budget", "cycle")}
SPECIFIED = ("tova", "random", "quest", "h2o")
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Lines(NamedTuple):
    """Lines of logic of one file; see the module's docstring."""

    question: int
    whole_class: int
    file: int


def lines_of(node: ast.AST) -> set[int]:
    """Line numbers a statement spans, decorators included."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return set(range(first, node.end_lineno + 1))


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Definition | ast.Module) and ast.get_docstring(node) is not None:
            found -= lines_of(node.body[0])
    return found


def is_backend(node: ast.stmt) -> bool:
    """Whether this is the dataclass of parameters: a class with the name it goes by."""
    names = [n.target for n in getattr(node, "body", []) if isinstance(n, ast.AnnAssign)]
    return isinstance(node, ast.ClassDef) and "name" in {
        n.id for n in names if isinstance(n, ast.Name)
    }


def count(source: str) -> Lines:
    """Lines of logic of a method's file."""
    code = code_lines(source)
    whole: set[int] = set()
    question: set[int] = set()
    for node in ast.parse(source).body:
        if not isinstance(node, Definition) or is_backend(node):
            continue
        whole |= lines_of(node)
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef):
                question.update(*(lines_of(statement) for statement in inner.body))
    return Lines(len(question & code), len(whole & code), len(code))


def file_of(method: str) -> Path:
    """The file of a shipped method; a control has a folder of its own."""
    here = METHODS / f"{method}.py"
    return here if here.is_file() else METHODS / "controls" / here.name


def public_names(source: str) -> set[str]:
    """Names a module defines or lists in `__all__`, but for those with an underscore in front."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if "__all__" in names and isinstance(node.value, ast.List | ast.Tuple):
            listed = [x.value for x in node.value.elts if isinstance(x, ast.Constant)]
            found.update(name for name in listed if isinstance(name, str))
        found |= {node.name} if isinstance(node, Definition) else names
    return {name for name in found if not name.startswith("_")}


def measure(checkout: Path) -> dict[str, int]:
    """Sizes of a checkout, by what they are sizes of."""
    sources = {
        name: {path: path.read_text(encoding="utf-8") for path in (checkout / name).rglob("*.py")}
        for name in (*PACKAGES, "tests")
    }
    lines = {
        name: {path: len(code_lines(source)) for path, source in files.items()}
        for name, files in sources.items()
    }
    sizes = {f"lines of {name}": sum(lines[name].values()) for name in PACKAGES}
    sizes["lines of the three"] = sum(sizes.values())
    sizes["lines of tests"] = sum(lines["tests"].values())
    sizes["modules"] = sum(len(sources[name]) for name in PACKAGES)
    sizes["public names"] = sum(
        len(public_names(source)) for name in PACKAGES for source in sources[name].values()
    )
    for package, stems in FILES.items():
        for stem in stems:
            found = [n for path, n in lines[package].items() if path.stem == stem]
            sizes[f"lines of {stem}.py"] = sum(found)
    return sizes


def table(checkouts: list[Path]) -> str:
    """A line for each size, a column for each checkout."""
    sizes = [measure(checkout) for checkout in checkouts]
    rows = [["", *(checkout.resolve().name for checkout in checkouts)]]
    rows += [[name, *(str(one[name]) for one in sizes)] for name in sizes[0]]
    return "\n".join(f"{row[0]:20}" + "".join(f"  {cell:>10}" for cell in row[1:]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=SPECIFIED, metavar="NAME|FILE")
    parser.add_argument("--packages", action="store_true", help="how large the packages are")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="and those of another one")
    args = parser.parse_args()
    if args.packages:
        print(table([*([args.against] if args.against else []), ROOT]))
        return
    print(f"{'method':12}{'question':>10}{'class':>8}{'file':>8}")
    for method in args.methods:
        path = Path(method) if method.endswith(".py") else file_of(method)
        if not path.is_file():
            parser.error(f"no file {path}")
        found = count(path.read_text(encoding="utf-8"))
        print(f"{path.stem:12}{found.question:>10}{found.whole_class:>8}{found.file:>8}")


if __name__ == "__main__":
    main()

"""Count the lines of logic of attention methods: how much there is to write for a new one.

    python scripts/count_logic.py                  # tova, random, quest, h2o
    python scripts/count_logic.py sink mine.py     # any methods, by name or file

A line of logic is a line of a file, formatted at 100 columns, that holds code. Blank lines,
comments and docstrings are not counted. Three numbers, from narrow to wide:

question  the bodies of the methods of the layer's class and of the functions beside it: which slots
          lose, or which slots for this query, with their accounting and options. `def` lines and
          the backend's dataclass are left out.
class     the same with the lines of `class`, `def`, their arguments and decorators.
file      every line of code of the file: imports, parameters and their checks too.

What a method calls in a rung or in another module is counted nowhere.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

METHODS = Path(__file__).parent.parent / "attention" / "methods"
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=SPECIFIED, metavar="NAME|FILE")
    print(f"{'method':12}{'question':>10}{'class':>8}{'file':>8}")
    for method in parser.parse_args().methods:
        path = Path(method) if method.endswith(".py") else file_of(method)
        if not path.is_file():
            parser.error(f"no file {path}")
        found = count(path.read_text(encoding="utf-8"))
        print(f"{path.stem:12}{found.question:>10}{found.whole_class:>8}{found.file:>8}")


if __name__ == "__main__":
    main()

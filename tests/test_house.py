"""No file and no function of the package grows beyond what a reader keeps in mind."""

import ast
import pathlib

PACKAGE = pathlib.Path(__file__).parents[1] / "pld_ray"
MAX_FILE, MAX_BODY = 350, 60
"""Lines of a file, and of a function's body without its docstring."""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body from its first statement that is no docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_files_and_functions_are_short():
    files, bodies = set(), set()
    for path in PACKAGE.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(PACKAGE))
        if text.count("\n") > MAX_FILE:
            files.add(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                body_lines(node) > MAX_BODY
            ):
                bodies.add(f"{name}:{node.name}")
    assert not files
    assert not bodies

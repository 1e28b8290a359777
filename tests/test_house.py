"""No file and no function of the package grows beyond what a reader keeps in mind; no merge is
left half done."""

import ast
import pathlib
import re
import subprocess

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


def test_no_merge_was_left_half_done():
    root = PACKAGE.parent
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    files = [root / name for name in listed.stdout.splitlines()] or [*PACKAGE.rglob("*.*")]
    mark = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert not [path for path in files if path.is_file() and mark.search(path.read_bytes())]

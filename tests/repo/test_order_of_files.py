"""The files that take longest, which begin first, are there."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_the_files_that_begin_first_are_there() -> None:
    tree = ast.parse((TESTS / "conftest.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONGEST"
    )
    assert len(set(names)) == len(names)
    assert [name for name in names if not (TESTS / name).is_file()] == []

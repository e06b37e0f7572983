"""Each finding, by section, is held by tests that exist."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SECTIONS: Final[dict[str, dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "findings.toml").read_text(encoding="utf-8")
)
NUM_FINDINGS: Final = {
    "attack": 12,
    "not-tried": 10,
    "separate-checks": 4,
    "faults": 7,
    "accepted": 15,
    "interfaces": 24,
    "users": 16,
}
ROWS: Final = {
    f"{section}.{name}": row for section, rows in SECTIONS.items() for name, row in rows.items()
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def test_every_finding_has_a_row() -> None:
    assert {section: len(rows) for section, rows in SECTIONS.items()} == NUM_FINDINGS


@pytest.mark.parametrize("name", ROWS)
def test_finding_is_held_by_tests_that_exist(name: str) -> None:
    row = ROWS[name]
    assert row["finding"].endswith(".")
    assert row["tests"]
    missing = []
    for test in row["tests"]:
        path, _, function = test.partition("::")
        if not (ROOT / path).is_file() or function not in names_in(path):
            missing.append(test)
    assert missing == []

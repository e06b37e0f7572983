"""Benchmarks, examples and scripts import names that exist: no other test imports most of them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
OWN: Final = ("core", "builtin_plugins", "core_kernels", "benchmarks", "examples", "tests")
FOLDERS: Final = ("benchmarks", "examples", "scripts")


def own_imports(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import from this repository's packages."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and module.partition(".")[0] in OWN:
            yield from ((module, alias.name) for alias in node.names)


def exists(module: str, name: str) -> bool:
    """Return whether a module has a name, as an attribute or as a submodule."""
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("folder", FOLDERS)
def test_imported_names_exist(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    assert files
    missing = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in files
        for module, name in own_imports(path)
        if not exists(module, name)
    ]
    assert missing == []

"""The distributions in `plugins/` use of engine and builtins only what others may use, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from test_no_circles import ROOT, imported

PUBLIC_OF_BUILTINS = re.compile(r"builtin_plugins\.\w+\.api")
FILES = sorted((ROOT / "plugins").glob("engine-*/engine_*/**/*.py"))


def private() -> list[str]:
    """Return the rooms of the kernel that builtins may not import either."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (found,) = (
        each for each in contracts if each["name"] == "Builtins use what is public of the kernel"
    )
    return [*found["forbidden_modules"]]


def strays(file: Path) -> list[str]:
    """Return the modules that a file imports and may not."""
    rooms = tuple(private())
    found = []
    for module, name in imported("plugin", file):
        in_a_room = f"{module}.{name}.".startswith(tuple(f"{room}." for room in rooms))
        of_builtins = module.partition(".")[
            0
        ] == "builtin_plugins" and not PUBLIC_OF_BUILTINS.fullmatch(module)
        found += [f"{module}.{name}"] if in_a_room or of_builtins else []
    return found


@pytest.mark.parametrize(
    ("line", "is_stray"),
    [
        ("from core.api import Entry", False),
        ("from builtin_plugins.quant_methods.stored.formats import StoredFormat", False),
        ("from builtin_plugins.kv_connectors.api import Wired", False),
        ("from builtin_plugins.kv_connectors.tcp.wired import Wired", True),
        ("import builtin_plugins.kv_connectors.bounded", True),
        ("from core.scheduler.queue import Queue", True),
        ("from core import worker", True),
    ],
)
def test_imports_of_what_is_private_are_found(line: str, is_stray: bool, tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(line)
    assert bool(strays(file)) is is_stray


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_distributions_import_what_is_public(file: Path) -> None:
    assert strays(file) == []

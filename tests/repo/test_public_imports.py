"""Plugins import only what is public: no builtin, distribution or example has a back door."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.repo.test_no_circles import ROOT, imported

PUBLIC: Final = re.compile(r"core|core\.(api|models|model_spec|testing)(\.\w+)*")
PUBLIC_OF_BUILTINS: Final = re.compile(r"builtin_plugins\.\w+\.api")


def plugin_files() -> Iterator[Path]:
    """Yield the files of builtins, distributions and examples."""
    yield from (ROOT / "builtin_plugins").rglob("*.py")
    yield from (ROOT / "plugins").glob("engine-*/engine_*/**/*.py")
    yield from (ROOT / "examples").rglob("*.py")


def private_imports(file: Path, package: str) -> list[str]:
    """Return the imports of a file that are not public; `package` is the file's own, dotted."""
    own = package.split(".")[:2]
    found = []
    for module, _ in imported(package, file):
        top = module.partition(".")[0]
        if top == "core" and not PUBLIC.fullmatch(module):
            found.append(module)
        is_own = module.split(".")[:2] == own
        if top == "builtin_plugins" and not is_own and not PUBLIC_OF_BUILTINS.fullmatch(module):
            found.append(module)
    return found


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("from core.api import Entry", False),
        ("from core.api.kv import FreeBlocks", False),
        ("from core import LLM", False),
        ("from core.models.layers.linear import Linear", False),
        ("from builtin_plugins.kv_connectors.api import TransportConnector", False),
        ("from builtin_plugins.kv_connectors.tcp.transport import TransportConnector", True),
        ("import builtin_plugins.kv_connectors.directory", True),
        ("from core.scheduler.queue import Queue", True),
        ("from core.contracts import Draft", True),
    ],
)
def test_private_imports_are_found(line: str, is_private: bool, tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(line)
    assert bool(private_imports(file, "a_plugin.plugin")) is is_private


def test_plugins_import_what_is_public() -> None:
    found = {}
    for file in plugin_files():
        package = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if private := private_imports(file, package):
            found[package] = private
    assert found == {}

"""What the engine promises plugins, release by release: the public names of each, written down when
it was made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from packaging.version import Version

import core
from core.errors import ConfigError
from core.plugin.discovery import module_file

FOLDER: Final = Path(__file__).parent / "released"
"""A file for each minor version, `0.1.json`: it is written anew until the next one begins, and then
never again.
"""
PUBLIC: Final = ("core", "core.api")
ROOMS: Final = ("core.models.layers", "core.models.ops", "core.testing")
"""Packages all of whose modules are public."""
BUILTINS: Final = "builtin_plugins"
_OF_A_KIND: Final = re.compile(rf"{BUILTINS}\.\w+\.api")
"""What the builtins of a kind promise to others of the kind: `builtin_plugins.KIND.api`."""

Names = Mapping[str, Sequence[str]]
"""By public module, what can be imported from it."""


def is_public(module: str) -> bool:
    """Say whether plugins may import from a module of the engine's."""
    in_a_room = module in ROOMS or module.startswith(tuple(f"{room}." for room in ROOMS))
    return module in PUBLIC or in_a_room or _OF_A_KIND.fullmatch(module) is not None


def public_names() -> Names:
    """Return what this engine promises, read from its text."""
    root = Path(core.__file__).parent
    files = [root / "__init__.py", root / "api.py"]
    for room in ROOMS:
        files += sorted((root / room.removeprefix("core.")).rglob("*.py"))
    found = {_dotted(file, root): file for file in files}
    builtins = module_file(BUILTINS)
    if builtins is not None:
        found |= {
            _dotted(file, builtins.parent): file
            for file in sorted(builtins.parent.glob("*/api.py"))
        }
    return {
        name: sorted(_names(ast.parse(file.read_text(encoding="utf-8"))))
        for name, file in found.items()
    }


def released(version: Version) -> Names:
    """Return what a release promised. Raises `ConfigError` for one that nothing is known of."""
    if minor(version) == minor(Version(core.__version__)):
        return public_names()
    file = FOLDER / f"{minor(version)}.json"
    if not file.is_file():
        known = ", ".join(sorted(found.stem for found in FOLDER.glob("*.json")))
        raise ConfigError(
            f"--against {version}: what that release promised was not written down; known are "
            f"{known}."
        )
    return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]])


def minor(version: Version) -> str:
    """Return major and minor version, between which promises are kept."""
    return f"{version.major}.{version.minor}"


def _dotted(file: Path, root: Path) -> str:
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module lists in `__all__`, or else those that it defines and does not
    hide.
    """
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            if names == ["__all__"] and node.value is not None:
                yield from ast.literal_eval(node.value)
                return
            found += names
    yield from (name for name in found if not name.startswith("_"))

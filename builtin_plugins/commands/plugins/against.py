"""`engine plugins check NAME --against VERSION`: what a plugin uses that a version of the engine
lacks, or that none promises.

Read from the plugin's text; nothing of it is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

import core
from builtin_plugins.commands.plugins.releases import (
    BUILTINS,
    Names,
    is_public,
    public_names,
    released,
)
from core.deprecated import DEPRECATIONS, Deprecation
from core.errors import ConfigError
from core.plugin import PluginRef, make_plan
from core.plugin.discovery import module_file

PRIVATE: Final = ("core", BUILTINS, "core_kernels")
"""Packages of the engine's: what of them is not public may change with every release."""


@dataclass(frozen=True, slots=True)
class Use:
    """Something of the engine's that a plugin uses."""

    place: str
    """File and line."""
    what: str
    promised: bool
    """False: no release promises it.

    True: it is promised by others than the one that was asked about.
    """


def uses_against(name: str, version: str) -> list[Use]:
    """Return what of a plugin does not fit a version, older or newer, in the order of its files.

    Raises `ConfigError` for a version that is none, and for an old one that nothing is known of.
    """
    try:
        against = Version(version)
    except InvalidVersion as error:
        raise ConfigError(
            f"--against {version!r} is no version of the engine, such as {core.__version__}."
        ) from error
    now = Version(core.__version__)
    promised = public_names() if against >= now else released(against)
    gone = [item for item in DEPRECATIONS if Version(item.gone) <= against]
    ref = next(ref for ref in make_plan(["none", name]).plugins if ref.named)
    found = []
    for file in _files(ref):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for line, module, name in sorted(_imports(tree)):
            found += [
                Use(f"{file.name}:{line}", what, known)
                for what, known in _misfits(module, name, promised, gone, version)
            ]
        for line, item in _definitions(tree, gone):
            found.append(Use(f"{file.name}:{line}", f"{item.what}: {item.instead}", promised=True))
    return found


def _misfits(
    module: str, name: str, promised: Names, gone: Sequence[Deprecation], version: str
) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with an import, and whether some release promises it."""
    dotted = f"{module}.{name}" if name else module
    ends = [item for item in gone if item.name and item.name == dotted]
    if ends:
        yield from ((f"{item.what}: {item.instead}", True) for item in ends)
    elif not is_public(module) and not is_public(dotted):
        yield f"{dotted} is private: no release promises it", False
    elif not _has(promised, module, name):
        yield f"{dotted} is not in {version}", True


def _definitions(
    tree: ast.Module, gone: Sequence[Deprecation]
) -> Iterator[tuple[int, Deprecation]]:
    """Yield the lines of functions whose kind goes away."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            taken = {
                each.arg
                for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            }
            for item in gone:
                if item.method == node.name and (not item.parameter or item.parameter in taken):
                    yield node.lineno, item


def _files(ref: PluginRef) -> list[Path]:
    """Return the text files of a plugin: its module, or the package that its module is in."""
    file = Path(ref.target) if ref.is_file else module_file(ref.target)
    if file is None:
        raise ConfigError(f"{ref}: its module {ref.target} has no text that could be read.")
    return sorted(file.parent.rglob("*.py")) if "." in ref.target and not ref.is_file else [file]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of what is imported from the engine; no name for a module as a
    whole.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _ours(node.module or ""):
            yield from ((node.lineno, node.module or "", each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, each.name, "") for each in node.names if _ours(each.name))


def _ours(module: str) -> bool:
    return module.partition(".")[0] in PRIVATE


def _has(promised: Names, module: str, name: str) -> bool:
    if module not in promised:
        return not name and any(other.startswith(f"{module}.") for other in promised)
    return not name or name == "*" or name in promised[module] or f"{module}.{name}" in promised

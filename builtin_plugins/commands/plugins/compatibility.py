"""Finds what a plugin uses that a version of the engine lacks, or that is private.

Reads the plugin's source; imports nothing of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

import core
from core.api import ConfigError
from core.api.plugins import PluginRef, make_plan, module_file

BUILTINS: Final = "builtin_plugins"
ENGINE_PACKAGES: Final = ("core", BUILTINS, "core_kernels")
"""Packages of the engine. Their names may change with every release unless they are public."""
PUBLIC_MODULES: Final = ("core",)
PUBLIC_PACKAGES: Final = ("core.api", "core.model_spec", "core.models", "core.testing")
"""Packages with only public modules."""
_KIND_API: Final = re.compile(rf"{BUILTINS}\.\w+\.api")
"""The public module of one kind, for third-party plugins of the same kind."""

Names = Mapping[str, Sequence[str]]
"""Public names by public module."""


@dataclass(frozen=True, slots=True)
class Use:
    """An engine name that a plugin uses and should not."""

    location: str
    """File name and line number."""
    what: str
    public: bool
    """Whether the name belongs to the public API of some version."""


def incompatible_uses(name: str, version: str) -> list[Use]:
    """Return the uses in a plugin that a version does not support, in file order.

    Raises `ConfigError` for an invalid version, and for an older minor version: its public names
    are unknown.
    """
    _check_version(version)
    public = public_names()
    ref = next(ref for ref in make_plan(["none", name]).plugins if ref.named)
    found = []
    for file in _files(ref):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for line, module, imported in sorted(_imports(tree)):
            location = f"{file.name}:{line}"
            dotted = f"{module}.{imported}" if imported else module
            if not is_public(module) and not is_public(dotted):
                found.append(Use(location, f"{dotted} is private", public=False))
            elif not _has(public, module, imported):
                found.append(Use(location, f"{dotted} is not in {version}", public=True))
    return found


def is_public(module: str) -> bool:
    """Return whether plugins may import from a module of the engine."""
    if module in PUBLIC_MODULES or module in PUBLIC_PACKAGES:
        return True
    if module.startswith(tuple(f"{package}." for package in PUBLIC_PACKAGES)):
        return True
    return _KIND_API.fullmatch(module) is not None


def public_names() -> Names:
    """Return the public names of this engine, read from its source."""
    root = Path(core.__file__).parent
    files = {"core": root / "__init__.py"}
    for package in PUBLIC_PACKAGES:
        folder = root.joinpath(*package.split(".")[1:])
        files |= {_module_name(file, root): file for file in sorted(folder.rglob("*.py"))}
    builtins = module_file(BUILTINS)
    if builtins is not None:
        files |= {
            _module_name(file, builtins.parent): file
            for file in sorted(builtins.parent.glob("*/api.py"))
        }
    return {
        name: sorted(_defined_names(ast.parse(file.read_text(encoding="utf-8"))))
        for name, file in files.items()
    }


def _check_version(text: str) -> None:
    current = Version(core.__version__)
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ConfigError(
            f"--against: got {text!r}; expected a version of the engine, such as {current}."
        ) from error
    if (version.major, version.minor) < (current.major, current.minor):
        raise ConfigError(
            f"--against: got {text}; expected {current.major}.{current.minor} or newer. "
            "The public names of older versions are unknown."
        )


def _files(ref: PluginRef) -> list[Path]:
    """Return the source files of a plugin: its module, or the package of its module."""
    file = Path(ref.target) if ref.is_file else module_file(ref.target)
    if file is None:
        raise ConfigError(f"{ref}: the source of module {ref.target} was not found.")
    if "." in ref.target and not ref.is_file:
        return sorted(file.parent.rglob("*.py"))
    return [file]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line number, module and name of each import from the engine.

    The name is empty for `import module`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_engine(node.module or ""):
            yield from ((node.lineno, node.module or "", each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, each.name, "") for each in node.names if _is_engine(each.name)
            )


def _is_engine(module: str) -> bool:
    return module.partition(".")[0] in ENGINE_PACKAGES


def _has(public: Names, module: str, name: str) -> bool:
    if module not in public:
        return not name and any(other.startswith(f"{module}.") for other in public)
    return not name or name == "*" or name in public[module] or f"{module}.{name}" in public


def _module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names in a module's `__all__`, or else the public names that it defines."""
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

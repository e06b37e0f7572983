"""Copies a builtin architecture into the module of a new one.

The copy holds the function, the definitions that it uses, and a tiny config with the fields that
it reads.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from core.api import ConfigError, Registry, did_you_mean
from core.api.plugins import CORE, discover, load_plan, make_plan, module_file

PUBLIC_PREFIX: Final = "core."
"""Modules that a plugin may import. From builtin modules the definitions are copied."""
_LABELS: Final = frozenset(
    {"transformers_version", "architectures", "model_type", "dtype", "_name_or_path"}
)
"""Config fields that do not affect the architecture."""
_LINE_LENGTH: Final = 120
PAGE: Final = '''\
"""An architecture copied from the engine's {architecture} (Apache-2.0): change what differs."""

from __future__ import annotations

{imports}

EXAMPLE_CONFIG: dict[str, Any] = {example}
"""Tiny config.json with which the conformance suite builds and runs the model."""
ORACLE = "{architecture}"
"""Reference: a class of transformers, or a function (config, weights, token ids) -> logits."""


{code}
'''


@dataclass(frozen=True, slots=True)
class ArchitectureCopy:
    """The module of a copied architecture."""

    text: str
    function: str
    """Name of the function that the entry targets."""


def copy_architecture(architecture: str) -> ArchitectureCopy:
    """Return a copy of a builtin architecture.

    Raises `ConfigError` for an unknown architecture, and for one without a `DecoderSpec`.
    """
    registry = load_plan(
        make_plan([f"no:{ref.name}" for ref in discover() if ref.distribution != CORE])
    )
    entries = {registered.entry.name: registered for registered in registry.entries("models")}
    if architecture not in entries:
        raise ConfigError(
            f"--from: got {architecture!r}; expected an architecture of `engine models`"
            f"{did_you_mean(architecture, entries)}"
        )
    module, _, function = str(entries[architecture].entry.target).partition(":")
    example = _example(registry, architecture)
    copy = _Copy()
    copy.add(module, function)
    copy.imports.setdefault("typing", set()).add("Any")
    text = PAGE.format(
        architecture=architecture,
        imports=copy.import_lines(),
        example="{\n"
        + "".join(
            f"    {_format_literal(name)}: {_format_literal(value)},\n"
            for name, value in example.items()
        )
        + "}",
        code="\n\n\n".join(copy.parts),
    )
    return ArchitectureCopy(text, function)


def _example(registry: Registry, architecture: str) -> dict[str, Any]:
    """Return a tiny config: the fields that the architecture reads and those without defaults."""
    import transformers  # lazy: slow to import

    from core.model_spec.decoder import DecoderSpec
    from core.testing.checkpoints import tiny_config

    unsupported = ConfigError(
        f"--from: got {architecture}; expected a decoder that transformers also has. "
        "Omit --from, or read the source of the builtin plugin."
    )
    if not hasattr(transformers, architecture):
        raise unsupported
    config = tiny_config(architecture)
    tracker = _ReadTracker(SimpleNamespace(**config.to_dict()))
    spec = registry.load(registry.choose("models", architecture))(tracker)
    if not isinstance(spec, DecoderSpec):
        raise unsupported
    defaults = type(config)().to_dict()
    others = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _LABELS and defaults.get(name) != value
    }
    return dict(sorted({**tracker.read, **others}.items()))


class _ReadTracker:
    """A config that records which of its fields are read."""

    def __init__(self, config: SimpleNamespace) -> None:
        self._config = config
        self.read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        self.read[name] = value
        return value


@dataclass(slots=True)
class _Copy:
    """Definitions copied from modules, each after those that it uses."""

    parts: list[str] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Imported names by module; an empty set imports the module itself."""
    copied: set[tuple[str, str]] = field(default_factory=set)

    def add(self, module: str, name: str) -> None:
        """Copy a definition of a module and all that it uses."""
        if (module, name) in self.copied:
            return
        self.copied.add((module, name))
        text = Path(module_file(module) or module).read_text(encoding="utf-8")
        tree = ast.parse(text)
        defined = dict(_defined(tree))
        origins = dict(_imported(tree))
        first, last = defined[name]
        for used in sorted(
            {
                node.id
                for n in tree.body[first:last]
                for node in ast.walk(n)
                if isinstance(node, ast.Name)
            }
        ):
            if used in defined and defined[used] != defined[name]:
                self.add(module, used)
            elif used in origins:
                self._import(*origins[used])
        first_line = _first_line(tree.body[first])
        self.parts.append(
            "\n".join(text.splitlines()[first_line - 1 : tree.body[last - 1].end_lineno])
        )

    def import_lines(self) -> str:
        """Return the import statements, those of the engine last."""
        found = sorted(self.imports.items(), key=lambda item: (bool(item[1]), item[0]))
        lines = [_import_line(module, sorted(names)) for module, names in found]
        groups = [
            [line for line in lines if f" {PUBLIC_PREFIX}" not in line],
            [line for line in lines if f" {PUBLIC_PREFIX}" in line],
        ]
        return "\n\n".join("\n".join(group) for group in groups if group)

    def _import(self, module: str, name: str) -> None:
        if module.startswith("builtin_plugins."):
            self.add(module, name)
        elif name:
            self.imports.setdefault(module, set()).add(name)
        else:
            self.imports.setdefault(module, set())


def _defined(tree: ast.Module) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each name that a module defines, with the range of its statements.

    The range of a constant includes its docstring.
    """
    for i, node in enumerate(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, (i, i + 1)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            following = tree.body[i + 1] if i + 1 < len(tree.body) else None
            has_docstring = isinstance(following, ast.Expr) and isinstance(
                following.value, ast.Constant
            )
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        yield each.id, (i, i + 1 + has_docstring)


def _imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each imported name, with its source module and the name there."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((each.name, (str(node.module), each.name)) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, (each.name, "")) for each in node.names)


def _import_line(module: str, names: Sequence[str]) -> str:
    if not names:
        return f"import {module}"
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _format_literal(value: Any) -> str:
    """Return plain data as Python source with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{_format_literal(key)}: {_format_literal(each)}" for key, each in value.items()
            )
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_literal, value))}]"
    return f'float("{value}")' if value in (float("inf"), float("-inf")) else repr(value)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])

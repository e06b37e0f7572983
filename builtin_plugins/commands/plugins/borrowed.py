"""A new architecture that begins as a copy of one the engine has: its function, and of the modules
it is in what that needs.

The copy is text, for its author to change; the tiny config beside it has the fields that the
function reads.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from core.errors import ConfigError, did_you_mean
from core.plugin import Registry, load_plan, make_plan
from core.plugin.discovery import CORE, discover, module_file

OURS: Final = "core."
"""Modules that a plugin may import; of all others of the engine's a copy takes what it needs."""
_LABELS: Final = frozenset(
    {"transformers_version", "architectures", "model_type", "dtype", "_name_or_path"}
)
"""Fields of a config that say nothing of how the model is made."""
_LINE: Final = 120
PAGE: Final = '''\
"""An architecture that begins as a copy of the engine's own {architecture} (Apache-2.0): change what differs."""

from __future__ import annotations

{imports}

EXAMPLE_CONFIG: dict[str, Any] = {example}
"""A tiny config.json, with which the conformance suite builds and runs the model."""
ORACLE = "{architecture}"
"""What computes the truth: transformers' class for such a config, or a function (config, weights, token ids) -> logits."""


{code}
'''


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The module of a new architecture."""

    text: str
    function: str
    """What its entry stands for."""


def borrowed(architecture: str) -> Borrowed:
    """Return a copy of one of the engine's architectures.

    Raises `ConfigError` for an unknown one, and for one that a page of facts does not describe.
    """
    registry = load_plan(
        make_plan([f"no:{ref.name}" for ref in discover() if ref.distribution != CORE])
    )
    entries = {registered.entry.name: registered for registered in registry.entries("models")}
    if architecture not in entries:
        raise ConfigError(
            f"--from {architecture!r} is no architecture of the engine's; `engine models list` "
            "shows them"
            f"{did_you_mean(architecture, entries)}"
        )
    module, _, function = str(entries[architecture].entry.target).partition(":")
    example = _example(registry, architecture)
    copy = _Copy()
    copy.take(module, function)
    copy.imports.setdefault("typing", set()).add("Any")
    text = PAGE.format(
        architecture=architecture,
        imports=copy.import_lines(),
        example="{\n"
        + "".join(f"    {_written(name)}: {_written(value)},\n" for name, value in example.items())
        + "}",
        code="\n\n\n".join(copy.parts),
    )
    return Borrowed(text, function)


def _example(registry: Registry, architecture: str) -> dict[str, Any]:
    """Return a tiny config: the fields that the architecture reads, and those without which
    transformers' is another.
    """
    import transformers  # lazy: slow to import

    from core.model_spec.decoder import DecoderSpec
    from core.testing.checkpoints import tiny_config

    refusal = ConfigError(
        f"--from {architecture}: only decoders that transformers has, too, can be copied: they are "
        "a page of facts, and "
        "something else computes the truth. Begin without --from, or see how the engine's own is "
        "made."
    )
    if not hasattr(transformers, architecture):
        raise refusal
    config = tiny_config(architecture)
    noted = _Noted(SimpleNamespace(**config.to_dict()))
    spec = registry.load(registry.choose("models", architecture))(noted)
    if not isinstance(spec, DecoderSpec):
        raise refusal
    usual = type(config)().to_dict()
    others = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _LABELS and usual.get(name) != value
    }
    return dict(sorted({**noted.read, **others}.items()))


class _Noted:
    """A config that notes which of its fields are read."""

    def __init__(self, config: SimpleNamespace) -> None:
        self._config = config
        self.read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        self.read[name] = value
        return value


@dataclass(slots=True)
class _Copy:
    """Definitions taken out of modules, each behind those it needs."""

    parts: list[str] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Names by module; none: the module itself."""
    taken: set[tuple[str, str]] = field(default_factory=set)

    def take(self, module: str, name: str) -> None:
        """Add what a module calls so, and all that it needs."""
        if (module, name) in self.taken:
            return
        self.taken.add((module, name))
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
                self.take(module, used)
            elif used in origins:
                self._import(*origins[used])
        begin = _begin(tree.body[first])
        self.parts.append("\n".join(text.splitlines()[begin - 1 : tree.body[last - 1].end_lineno]))

    def import_lines(self) -> str:
        """Return the statements, the standard library's before the engine's."""
        found = sorted(self.imports.items(), key=lambda item: (bool(item[1]), item[0]))
        lines = [_import_line(module, sorted(names)) for module, names in found]
        groups = [
            [line for line in lines if f" {OURS}" not in line],
            [line for line in lines if f" {OURS}" in line],
        ]
        return "\n\n".join("\n".join(group) for group in groups if group)

    def _import(self, module: str, name: str) -> None:
        if module.startswith("builtin_plugins."):
            self.take(module, name)
        elif name:
            self.imports.setdefault(module, set()).add(name)
        else:
            self.imports.setdefault(module, set())


def _defined(tree: ast.Module) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each name that a module defines with its statements: a constant's docstring stands
    behind it.
    """
    for i, node in enumerate(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, (i, i + 1)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            behind = tree.body[i + 1] if i + 1 < len(tree.body) else None
            said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        yield each.id, (i, i + 1 + said)


def _imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name that a module imports, with the module and the name there."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((each.name, (str(node.module), each.name)) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, (each.name, "")) for each in node.names)


def _import_line(module: str, names: Sequence[str]) -> str:
    if not names:
        return f"import {module}"
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _written(value: Any) -> str:
    """Return plain data as it is written in Python, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_written(key)}: {_written(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    return f'float("{value}")' if value in (float("inf"), float("-inf")) else repr(value)


def _begin(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])

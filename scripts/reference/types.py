"""Page of public types: every public name of the plugin API with its fields."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import builtin_plugins
from core import api
from scripts.reference.attributes import Attribute, attributes_of
from scripts.reference.glossary import GLOSSARY

PACKAGES: Final = ("core.model_spec", "core.models", "core.testing")
INTRO = """\
# Public types

Names for plugins. `core.api` changes only with the version of the plugin API; so does `api` of a
kind of builtins, which has the contracts that only builtins use.
`core.model_spec` and `core.models` are for models and kernels, `core.testing` is for tests.

"""


def types_page() -> str:
    """Return the page as markdown."""
    parts = [INTRO, "## `core.api`\n\n"]
    for name in sorted(api.__all__, key=str.casefold):
        parts += _item(name, getattr(api, name))
    for module in [*modules_of("core.api"), *apis_of_kinds()]:
        parts.append(f"## `{module.__name__}`\n\n{_doc(module)}\n\n")
        for name in sorted(module.__all__, key=str.casefold):
            if hasattr(module, name):  # others exist for type checkers only
                parts += _item(name, getattr(module, name))
    for package in PACKAGES:
        for module in modules_of(package):
            named = list(public_of(module))
            if named:
                parts.append(f"## `{module.__name__}`\n\n{_doc(module)}\n\n")
                parts += [line for name, item in named for line in _item(name, item)]
    return "".join(parts).rstrip() + "\n"


def modules_of(room: str) -> Iterator[ModuleType]:
    """Yield the modules of a package, sorted by name."""
    package = importlib.import_module(room)
    for found in sorted(
        pkgutil.walk_packages(package.__path__, f"{room}."), key=lambda each: each.name
    ):
        yield importlib.import_module(found.name)


def apis_of_kinds() -> Iterator[ModuleType]:
    """Yield the modules with the public names of the kinds of builtins, sorted by name."""
    for file in sorted(Path(builtin_plugins.__path__[0]).glob("*/api.py")):
        yield importlib.import_module(f"builtin_plugins.{file.parent.name}.api")


def public_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions that a module defines, in source order."""
    for name, item in vars(module).items():
        own = getattr(item, "__module__", "") == module.__name__
        if (
            not name.startswith(("_", "check_"))
            and own
            and (inspect.isclass(item) or inspect.isfunction(item))
        ):
            yield name, item


def meaning(owner: type, attribute: Attribute) -> str:
    """Return an attribute's description; empty if there is none.

    Sources in order: its docstring, its annotation, the field glossary.
    """
    if attribute.text:
        return attribute.text
    hint = vars(inspect.getmodule(owner) or api).get("Bound")
    annotated = (
        typing.get_type_hints(owner, include_extras=True).get(attribute.name)
        if hint is not None
        else None
    )
    bound = next(
        (part for part in getattr(annotated, "__metadata__", ()) if hasattr(part, "doc")), None
    )
    if bound is not None:
        return str(bound.doc)
    keys = (f"{owner.__name__}.{attribute.name}", f"{owner.__name__}.*", attribute.name)
    return next((GLOSSARY[key] for key in keys if key in GLOSSARY), "")


def _item(name: str, item: Any) -> Iterator[str]:
    if not inspect.isclass(item):
        value = _signature(item) if inspect.isfunction(item) else f" = {_value(item)}"
        yield f"### `{name}{value}`\n\n"
        yield f"{_doc(item)}\n\n" if inspect.isfunction(item) else ""
        return
    yield f"### `{name}`\n\n{_doc(item)}\n\n"
    lines = [f"- `{each.declared}` {meaning(item, each)}".rstrip() for each in attributes_of(item)]
    lines += [
        f"- `{method}{_signature(found)}` {_doc(found)}".rstrip()
        for method, found in vars(item).items()
        if inspect.isfunction(found) and not method.startswith("_")
    ]
    yield "\n".join(lines) + "\n\n" if lines else ""


def _value(item: Any) -> str:
    """Return a constant as text, equal in every process: sets sorted, objects by type."""
    if isinstance(item, (set, frozenset)):
        return f"{{{', '.join(sorted(map(repr, item)))}}}"
    if " at 0x" in repr(item):
        return str(getattr(item, "__name__", type(item).__name__))
    return f"{item!r:.300}"


def _doc(item: Any) -> str:
    return " ".join((inspect.getdoc(item) or "").split())


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    own = [
        p if p.default is p.empty else p.replace(default=_Default(_value(p.default)))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    return str(signature.replace(parameters=own)).replace("'", "")


class _Default:
    """Default value with a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

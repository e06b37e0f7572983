"""The page of public types: every name of `core.api`, `core.models.layers`, `core.models.ops` and `core.testing`,
with its fields and their meaning.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from core import api
from scripts.reference.attributes import Attribute, attributes_of
from scripts.reference.glossary import GLOSSARY

ROOMS: Final = ("core.models.layers", "core.models.ops", "core.testing")
INTRO = """\
# Public types

What plugins are written with. Names of `core.api` are promised: they change only with the version of the contracts. `core.models.layers` and
`core.models.ops` are for models and kernels, `core.testing` is for tests.

"""


def types_page() -> str:
    """Return the page as markdown."""
    parts = [INTRO, "## `core.api`\n\n"]
    for name in sorted(api.__all__, key=str.casefold):
        parts += _item(name, getattr(api, name))
    for room in ROOMS:
        for module in modules_of(room):
            named = list(public_of(module))
            if named:
                parts.append(f"## `{module.__name__}`\n\n{_said(module)}\n\n")
                parts += [line for name, item in named for line in _item(name, item)]
    return "".join(parts).rstrip() + "\n"


def modules_of(room: str) -> Iterator[ModuleType]:
    """Yield the modules of a package that can be imported here, in the order of their names."""
    package = importlib.import_module(room)
    for found in sorted(
        pkgutil.walk_packages(package.__path__, f"{room}."), key=lambda each: each.name
    ):
        yield importlib.import_module(found.name)


def public_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions that a module defines under public names, in the order of the
    text.
    """
    for name, item in vars(module).items():
        own = getattr(item, "__module__", "") == module.__name__
        if (
            not name.startswith(("_", "check_"))
            and own
            and (inspect.isclass(item) or inspect.isfunction(item))
        ):
            yield name, item


def meaning(owner: type, attribute: Attribute) -> str:
    """Return what an attribute means: the text beneath it, that of its annotation, or the word's;
    empty if nobody says.
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
        shown = (
            f"{name}{_signature(item)}" if inspect.isfunction(item) else f"{name} = {_value(item)}"
        )
        yield f"### `{shown}`\n\n"
        yield f"{_said(item)}\n\n" if inspect.isfunction(item) else ""
        return
    yield f"### `{name}`\n\n{_said(item)}\n\n"
    lines = [f"- `{each.declared}` {meaning(item, each)}".rstrip() for each in attributes_of(item)]
    lines += [
        f"- `{method}{_signature(found)}` {_said(found)}".rstrip()
        for method, found in vars(item).items()
        if inspect.isfunction(found) and not method.startswith("_")
    ]
    yield "\n".join(lines) + "\n\n" if lines else ""


def _value(item: Any) -> str:
    """Return a constant as it is the same in every process: sets in order, objects by their type."""
    if isinstance(item, (set, frozenset)):
        return f"{{{', '.join(sorted(map(repr, item)))}}}"
    if " at 0x" in repr(item):
        return str(getattr(item, "__name__", type(item).__name__))
    return f"{item!r:.300}"


def _said(item: Any) -> str:
    return " ".join((inspect.getdoc(item) or "").split())


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    own = [
        p if p.default is p.empty else p.replace(default=_Shown(_value(p.default)))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    return str(signature.replace(parameters=own)).replace("'", "")


class _Shown:
    """A default, as it is to be written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

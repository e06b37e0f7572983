"""Reads the annotated attributes of a class with their docstrings from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """One annotated attribute of a class."""

    name: str
    declared: str
    """Source text: name, type and default."""
    text: str
    """Attribute docstring in one line; empty for none."""


def attributes_of(item: type) -> Iterator[Attribute]:
    """Yield a class's public attributes in source order."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]
    except (OSError, TypeError):  # generated, without source
        return
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(name)) if not name.startswith("_"):
                yield Attribute(name, ast.unparse(statement), _text(following))


def _text(following: ast.stmt | None) -> str:
    match following:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.split())
    return ""

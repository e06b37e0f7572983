"""The attributes that a class declares, with the texts beneath them: read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribute:
    """One annotated name in the body of a class."""

    name: str
    declared: str
    """As it is written: name, type and default."""
    text: str
    """What stands beneath it, in one line; empty where nothing does."""


def attributes_of(item: type) -> Iterator[Attribute]:
    """Yield a class's own attributes in the order of its text; none of those whose names begin with
    an underscore.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]
    except (OSError, TypeError):  # made by a call, without a text of its own
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

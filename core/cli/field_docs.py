"""Help texts of the section fields: their docstrings, read from the source on demand."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from typing import Any

from core.config import sections
from core.config.fields import Field, FieldTable


def section_docs() -> dict[str, str]:
    """Return the texts of all section fields by flat name, and of sections by "[name]"."""
    tree = ast.parse(inspect.getsource(sections))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    docs: dict[str, str] = {}
    for section, kind in FieldTable().sections.items():
        node = classes[kind.__name__]
        docs[f"[{section}]"] = ast.get_docstring(node) or ""
        for statement, following in zip(node.body, node.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    docs[name] = inspect.cleandoc(text).replace("\n", " ")
    return docs


def field_doc(found: Field, docs: Mapping[str, str]) -> str:
    """Return the help text of one field."""
    return found.help if found.help is not None else docs.get(found.name, "")


def show_default(value: Any) -> str:
    """Return a default as text for help and docs."""
    if value is None:
        return "none"
    if isinstance(value, str) and value:
        return value
    return json.dumps(value)

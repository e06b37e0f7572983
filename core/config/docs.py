"""Texts of the section fields: the docstrings beneath them, read from the source only when help is asked for."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping

from core.config import sections
from core.config.fields import Field, FieldTable


def section_docs() -> dict[str, str]:
    """Return the text of every section field by flat name, and of every section under "[name]"."""
    tree = ast.parse(inspect.getsource(sections))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    docs: dict[str, str] = {}
    for section, kind in FieldTable().sections.items():
        node = classes[kind.__name__]
        docs[f"[{section}]"] = ast.get_docstring(node) or ""
        for statement, following in zip(node.body, node.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                docs[statement.target.id] = _text(following)
    return docs


def field_doc(found: Field, docs: Mapping[str, str]) -> str:
    """Return one field's text."""
    return found.help if found.help is not None else docs.get(found.name, "")


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value).replace("\n", " ")
    return ""

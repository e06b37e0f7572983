"""Structural tags as xgrammar reads them, with schemas that hold outputs as exactly as schemas do
by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from builtin_plugins.grammar_backends.xgrammar.schema import unserved

SchemaToGrammar = Callable[[Any], str]


def structural_tag(text: str, to_grammar: SchemaToGrammar) -> str:
    """Return a tag with each JSON schema in it as the grammar that `to_grammar` writes for it.

    Schemas that are not written as JSON, but in some family's own style, stay what they are.
    """
    tag = _todays(json.loads(text))
    for part in _schemas(tag):
        if part.get("style", "json") == "json" and not {*part} - {"type", "json_schema", "style"}:
            grammar = to_grammar(part.pop("json_schema"))
            part.update(type="grammar", grammar=grammar)
            part.pop("style", None)
    return json.dumps(tag)


def unserved_in_tag(text: str) -> str | None:
    """Return what outputs would not be held to in the schemas of a tag; None if there is nothing."""
    tag = _todays(json.loads(text))
    for part in _parts(tag):
        if part.get("type") == "token" and not isinstance(part.get("token"), int):
            return "a token by its text (give its id)"
    return next(
        (what for part in _schemas(tag) if (what := unserved(part["json_schema"])) is not None),
        None,
    )


def token_ids(text: str) -> set[int]:
    """Return the tokens that a tag names by id."""
    return {part["token"] for part in _parts(json.loads(text)) if part.get("type") == "token"}


def _schemas(tag: Any) -> Iterator[dict[str, Any]]:
    return (
        part for part in _parts(tag) if part.get("type") == "json_schema" and "json_schema" in part
    )


def _parts(tag: Any) -> Iterator[dict[str, Any]]:
    """Yield the formats in a tag; what is in a schema is none."""
    open_ = [tag]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            open_ += [inner for key, inner in part.items() if key != "json_schema"]
            yield part


def _todays(tag: Any) -> Any:
    """Return a tag in today's form; the former one lists `structures` and `triggers`."""
    if "structures" not in tag:
        return tag
    tags = [
        {
            "begin": item["begin"],
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item["end"],
        }
        for item in tag["structures"]
    ]
    found = {"type": "triggered_tags", "triggers": tag.get("triggers", []), "tags": tags}
    return {"type": "structural_tag", "format": found}

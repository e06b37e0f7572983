"""JSON schemas and structural tags for llguidance. Closes objects, unlike the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from builtin_plugins.grammar_backends.api import schema_parts

_NAMING: Final = frozenset(["properties", "patternProperties"])
_ALTERNATIVES: Final = ("anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """Return the schema with `additionalProperties` false where it names properties.

    Raises `ValueError` if several schemas name properties of one object, as each would exclude
    those of the others.
    """
    schema = deepcopy(schema)
    parts = [*schema_parts(schema)]
    naming = _Naming(schema)
    for part in parts:
        count, is_open = naming.count(part)
        if count > 1 and is_open:
            raise ValueError(
                "properties of one object in several schemas; state additionalProperties in each "
                "of them"
            )
    for part in parts:
        if _NAMING & {*part}:
            part.setdefault("additionalProperties", False)
    return schema


class _Naming:
    """Counts the schemas that name properties of the same object."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._known: dict[int, tuple[int, bool]] = {}

    def count(self, part: Any) -> tuple[int, bool]:
        """Return their number, up to 2, and whether one leaves additional properties open."""
        if not isinstance(part, Mapping):
            return 0, False
        if id(part) not in self._known:
            self._known[id(part)] = 0, False  # recursive references name nothing new
            names = bool(_NAMING & {*part})
            found = [
                (int(names), names and "additionalProperties" not in part),
                *self._others(part),
            ]
            self._known[id(part)] = (
                min(2, sum(count for count, _ in found)),
                any(is_open for _, is_open in found),
            )
        return self._known[id(part)]

    def _others(self, part: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
        yield from map(self.count, part.get("allOf", ()))
        for name in _ALTERNATIVES:
            found = [self.count(branch) for branch in part.get(name, ())]
            yield (
                max((count for count, _ in found), default=0),
                any(is_open for _, is_open in found),
            )
        yield self.count(self._target(part.get("$ref")))

    def _target(self, ref: Any) -> Any:
        if not (isinstance(ref, str) and ref.startswith("#")):
            return None
        found = self._whole
        for name in ref.removeprefix("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


_REPEATED: Final = {"star": "*", "plus": "+", "optional": "?"}


class Tags:
    """Converts a structural tag. Raises `ValueError` naming an unsupported part."""

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        """`prepare` converts a schema for the library."""
        self._prepare = prepare
        self._rules: list[str] = []

    def grammar(self, text: str) -> str:
        """Return the grammar of a structural tag."""
        tag = json.loads(text)
        if "format" not in tag:
            raise ValueError("free text between tags; use xgrammar")
        start = self._expression(tag["format"])
        return "\n".join([f"start: {start}", *self._rules])

    def _expression(self, form: Any) -> str:
        kind = form.get("type")
        if kind == "const_string":
            return json.dumps(form["value"])
        if kind == "token" and isinstance(form.get("token"), int):
            return f"<[{form['token']}]>"
        if kind == "json_schema" and form.get("style", "json") == "json":
            self._rules.append(
                f"json_{len(self._rules)}: %json {json.dumps(self._prepare(form['json_schema']))}"
            )
            return f"json_{len(self._rules) - 1}"
        if kind in ("sequence", "or"):
            parts = [self._expression(element) for element in form["elements"]]
            return f"({(' ' if kind == 'sequence' else ' | ').join(parts)})"
        if kind in _REPEATED:
            return f"({self._expression(form['content'])}){_REPEATED[kind]}"
        begin = form.get("begin")
        end = form.get("end")
        if kind == "tag" and isinstance(begin, str) and isinstance(end, str):
            content = self._expression(form["content"])
            return f"({json.dumps(begin)} {content} {json.dumps(end)})"
        raise ValueError(f"{kind!r} in a structural tag; use xgrammar")

"""MiniMax M3: arguments are elements with their names, objects and lists are nested elements.

Format: the chat template of MiniMaxAI/MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.output_parsers.api import (
    Broken,
    OutputReader,
    Reading,
    schema_types,
    typed_value,
)
from builtin_plugins.output_parsers.contract import ParseRequest, ToolFormat
from builtin_plugins.output_parsers.tools.tagged import read_text_until

MARK: Final = "]<]minimax[>["
"""Text before every tag."""
NEXT: Final = "<invoke name="
MAX_DEPTH: Final = 50
"""Maximum nesting of elements."""


def read_calls(reader: OutputReader, request: ParseRequest) -> Reading:
    """Read `<invoke name="..."><argument>value</argument></invoke>` in `<tool_call>`."""
    invoke = MARK + NEXT
    section = f"{MARK}<tool_call>"
    while start := (yield from reader.content_until_call(section, invoke)):
        with reader.attempt():
            if start == section:
                yield from reader.expect(invoke)
            ended = NEXT
            while ended == NEXT:  # the next call may start where an end is missing
                yield from reader.skip_optional('"', "'")
                name = yield from reader.read_name()
                yield from read_text_until(reader, ">")
                found, _, ended = yield from read_element(
                    reader, "invoke", request.parameters(name)
                )
                reader.add_call(name, merge_elements(found, ""))
        yield from reader.skip_layout(f"{MARK}</tool_call>")


def read_element(reader: OutputReader, name: str, schema: Any, depth: int = 0) -> Reading:
    """Return (elements, text, end tag) of an element after its start tag."""
    parts: list[str] = []
    found: list[tuple[str, Any]] = []
    soft = () if depth else ("</tool_call>", NEXT)
    while True:
        if not (soft and (yield from reader.skip_optional(MARK))):
            if soft and found and reader.ended:
                return found, "", ""
            text, _ = yield from reader.read_until(MARK)
            parts.append(text)
        tag = yield from reader.skip_optional(f"</{name}>", *soft, "<")
        if tag is None:  # the start tag of the first argument may be missing: use its end tag
            text, _ = yield from reader.read_until(MARK)
            yield from reader.expect("</")
            inner, _ = yield from read_text_until(reader, ">")
            found.append((inner, typed_value(text, element_schema(schema, inner))))
            continue
        if tag != "<":
            return found, "".join(parts), tag
        if depth > MAX_DEPTH:
            raise Broken
        inner, _ = yield from read_text_until(reader, ">")
        element_type = element_schema(schema, inner)
        nested, text, _ = yield from read_element(reader, inner, element_type, depth + 1)
        found.append((inner, element_value(nested, text, element_type)))


def element_value(found: list[tuple[str, Any]], text: str, schema: Any) -> Any:
    """Return an element's value: a list of its items, an object of its elements, or its text."""
    kinds = schema_types(schema)
    if found and all(name == "item" for name, _ in found) and not (kinds and "array" not in kinds):
        return [value for _, value in found]
    if found:
        return merge_elements(found, text)
    if not text and kinds and "string" not in kinds:  # empty lists and objects have no text
        if "array" in kinds:
            return []
        return {} if "object" in kinds else text
    return typed_value(text, schema)


def merge_elements(found: list[tuple[str, Any]], text: str) -> dict[str, Any]:
    """Return elements as one object: repeated names as a list, text under `$text`."""
    values: dict[str, list[Any]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    merged = {
        name: several[0] if len(several) == 1 else several for name, several in values.items()
    }
    return merged | {"$" * (1 + ("$text" in merged)) + "text": text} if text.strip() else merged


def element_schema(schema: Any, name: str) -> Any:
    """Return the schema of a nested element; None if there is none."""
    if not isinstance(schema, Mapping):
        return None
    choices = [
        schema,
        *(choice for word in ("anyOf", "oneOf") for choice in schema.get(word) or ()),
    ]
    for choice in choices:
        properties = choice.get("properties") if isinstance(choice, Mapping) else None
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    lists = (choice.get("items") for choice in choices if isinstance(choice, Mapping))
    return next((items for items in lists if items is not None), None) if name == "item" else None


MINIMAX_M3: Final = ToolFormat(
    read_calls,
    markers=(MARK,),
    call_ends=(f"{MARK}</tool_call>",),
    begins=(f"{MARK}<tool_call>",),
    template_hints=(MARK,),
)

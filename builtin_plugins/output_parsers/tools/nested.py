"""MiniMax M3: arguments as elements of their own name, objects and lists as elements inside of
elements.

Format: the chat template of MiniMaxAI/MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.output_parsers.tools.tagged import up_to
from core.api import Broken, ParseRequest, Reading, Scan, ToolFormat, schema_types, typed_value

MARK: Final = "]<]minimax[>["
"""In front of every tag."""
NEXT: Final = "<invoke name="
MAX_DEPTH: Final = 50


def read(scan: Scan, request: ParseRequest) -> Reading:
    """Read `<invoke name="..."><argument>value</argument></invoke>`, one or more in `<tool_call>`."""
    invoke = MARK + NEXT
    section = f"{MARK}<tool_call>"
    while start := (yield from scan.text(section, invoke)):
        with scan.attempt():
            if start == section:
                yield from scan.expect(invoke)
            ended = NEXT
            while (
                ended == NEXT
            ):  # where the end of a call is missing, the next one's begin was read for it
                yield from scan.maybe('"', "'")
                name = yield from scan.word()
                yield from up_to(scan, ">")
                found, _, ended = yield from inside(scan, "invoke", request.parameters(name))
                scan.call(name, joined(found, ""))
        yield from scan.layout(f"{MARK}</tool_call>")


def inside(scan: Scan, name: str, schema: Any, depth: int = 0) -> Reading:
    """Return the elements in one whose start tag was read, its text, and what ended it."""
    parts: list[str] = []
    found: list[tuple[str, Any]] = []
    soft = () if depth else ("</tool_call>", NEXT)
    while True:
        if not (soft and (yield from scan.maybe(MARK))):
            if soft and found and scan.ended:
                return found, "", ""
            text, _ = yield from scan.take(MARK)
            parts.append(text)
        tag = yield from scan.maybe(f"</{name}>", *soft, "<")
        if (
            tag is None
        ):  # some models leave out the start tag of the first argument: its end tag says its name
            text, _ = yield from scan.take(MARK)
            yield from scan.expect("</")
            inner, _ = yield from up_to(scan, ">")
            found.append((inner, typed_value(text, schema_of(schema, inner))))
            continue
        if tag != "<":
            return found, "".join(parts), tag
        if depth > MAX_DEPTH:
            raise Broken
        inner, _ = yield from up_to(scan, ">")
        stated = schema_of(schema, inner)
        nested, text, _ = yield from inside(scan, inner, stated, depth + 1)
        found.append((inner, value_of(nested, text, stated)))


def value_of(found: list[tuple[str, Any]], text: str, schema: Any) -> Any:
    """Return what an element stands for: a list of its items, an object of its elements, or its
    text.
    """
    kinds = schema_types(schema)
    if found and all(name == "item" for name, _ in found) and not (kinds and "array" not in kinds):
        return [value for _, value in found]
    if found:
        return joined(found, text)
    if (
        not text and kinds and "string" not in kinds
    ):  # the template writes empty lists and objects so
        return [] if "array" in kinds else {} if "object" in kinds else text
    return typed_value(text, schema)


def joined(found: list[tuple[str, Any]], text: str) -> dict[str, Any]:
    """Return elements as one object: those of one name as a list, text between them under a name of
    its own.
    """
    values: dict[str, list[Any]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    joint = {name: several[0] if len(several) == 1 else several for name, several in values.items()}
    return joint | {"$" * (1 + ("$text" in joint)) + "text": text} if text.strip() else joint


def schema_of(schema: Any, name: str) -> Any:
    """Return the schema of an element inside another."""
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
    read, markers=(MARK,), call_ends=(f"{MARK}</tool_call>",), signs=(MARK,)
)

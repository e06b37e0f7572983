"""MiniMax M3: arguments as elements of their own name, objects and lists as elements inside of elements.

Format: the chat template of MiniMaxAI/MiniMax-M3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import Broken, ParseRequest, Reading, Scan, ToolFormat, typed_value

MARK: Final = "]<]minimax[>["
"""In front of every tag."""
MAX_DEPTH: Final = 50


def read(scan: Scan, request: ParseRequest) -> Reading:
    """Read `<invoke name="..."><argument>value</argument></invoke>`, one or more in `<tool_call>`."""
    invoke, section = f'{MARK}<invoke name="', f"{MARK}<tool_call>"
    while start := (yield from scan.text(section, invoke)):
        with scan.attempt():
            if start == section:
                yield from scan.expect(invoke)
            name = yield from scan.word()
            yield from scan.expect('">')
            arguments = yield from elements(scan, "invoke", request.parameters(name))
            scan.call(name, {} if arguments == "" else arguments)
        yield from scan.layout(f"{MARK}</tool_call>")


def elements(scan: Scan, inside: str, schema: Any, depth: int = 0) -> Reading:
    """Return what is in an element whose start tag was read: its text, or its elements as an object or a list."""
    text, _ = yield from scan.take(MARK)
    found: list[tuple[str, Any]] = []
    while (yield from scan.expect(f"</{inside}>", "<")) == "<":
        if depth > MAX_DEPTH:
            raise Broken
        name = yield from scan.word()
        yield from scan.expect(">")
        found.append((name, (yield from elements(scan, name, schema_of(schema, name), depth + 1))))
        yield from scan.expect(MARK)
    if not found:
        return typed_value(text, schema) if depth else ""
    return [value for _, value in found] if all(name == "item" for name, _ in found) and depth else dict(found)


def schema_of(schema: Any, name: str) -> Any:
    """Return the schema of an element inside another."""
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) and name in properties else schema.get("items")


MINIMAX_M3: Final = ToolFormat(read, markers=(MARK,), signs=(MARK,))

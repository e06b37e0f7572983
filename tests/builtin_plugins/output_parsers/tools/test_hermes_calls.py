"""Hermes calls: published cases in every chunking."""

from __future__ import annotations

from typing import Any

import pytest

from builtin_plugins.output_parsers.testing import Parsed, Reader
from builtin_plugins.output_parsers.tools.json_calls import HERMES

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER = ("get_weather", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello!", "Hello!", []),
        (CALL, "", [WEATHER]),
        (f"{CALL}\n{CALL}", "", [WEATHER, WEATHER]),
        (f"Let me look.\n{CALL}\nThere.", "Let me look.\nThere.", [WEATHER]),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", {})]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": [{"b": null}, 1.5], "c": "größer 漢字 '
            '\\u00e9 🙂"}}</tool_call>',
            "",
            [("f", {"a": [{"b": None}, 1.5], "c": "größer 漢字 é 🙂"})],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> \\" {"}}</tool_call>',
            "",
            [("f", {"a": '</tool_call> " {'})],
        ),
        (CALL[:40], CALL[:40], []),
        (
            f'<tool_call>{{"name": "f", "arguments": {{"a": }}}}</tool_call>{CALL}',
            '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
            [WEATHER],
        ),
        (
            f'<tool_call>{{"name": "f", "arguments": {{"a": 1}}</tool_call>{CALL}',
            "",
            [("f", {"a": 1}), WEATHER],
        ),
        (
            '<tool_call>{"name": "no_such_tool", "arguments": {"x": true}}</tool_call>',
            "",
            [("no_such_tool", {"x": True})],
        ),
        ('<tool_call>["f"]</tool_call>', '<tool_call>["f"]</tool_call>', []),
        ("a <tool_ca", "a <tool_ca", []),
    ],
)
def test_hermes_calls(text: str, content: str | None, calls: list[tuple[str, Any]]) -> None:
    expected = text.replace(CALL, "") if content is None else content
    assert Reader(tools=HERMES).check(text) == Parsed(content=expected, calls=tuple(calls))


def test_special_tokens_count_only_as_tokens() -> None:
    """If the tags are special tokens, spelling them in other tokens is text."""
    reader = Reader(tools=HERMES, special=frozenset(HERMES.markers))
    assert reader.check(f"Look: {CALL}") == Parsed(content="Look:", calls=(WEATHER,))
    assert reader.read([(f"I would write {CALL}", ())]) == Parsed(content=f"I would write {CALL}")

"""A tool call parser: how a model writes calls.

The engine handles streaming, chunks and malformed calls.
"""

from __future__ import annotations

from builtin_plugins.output_parsers.api import OutputReader, ParseRequest, Reading, ToolFormat


def read(reader: OutputReader, request: ParseRequest) -> Reading:
    """Parse any number of `<call>name{"argument": 1}</call>`, with text around them."""
    while (yield from reader.content_until_call("<call>")):
        with reader.attempt():  # a malformed call becomes content
            name = yield from reader.read_before("{")
            arguments = yield from reader.read_object()
            yield from reader.close_call("</call>")  # or what ends a call without it
            reader.add_call(name, arguments)


EXAMPLES = [
    ('<call>weather{"city": "Oslo", "days": 2}</call>', [("weather", {"city": "Oslo", "days": 2})]),
    (
        '<call>now{}</call>\n<call>add{"a": 1, "b": -2.5}</call>',
        [("now", {}), ("add", {"a": 1, "b": -2.5})],
    ),
]
"""Texts and their calls, tested in every chunking by the conformance suite."""
FORMAT = ToolFormat(read, markers=("<call>", "</call>"), call_ends=("</call>",))

"""A tool call parser: says how a model family writes calls; streaming, chunks and broken calls are
the engine's part.
"""

from __future__ import annotations

from core.api import ParseRequest, Reading, Scan, ToolFormat


def read(scan: Scan, request: ParseRequest) -> Reading:
    """Read `<call>name{"argument": 1}</call>`, any number of them, with text around."""
    while (yield from scan.text("<call>")):
        with scan.attempt():  # what breaks inside is content, all of it
            name = yield from scan.before("{")
            arguments = yield from scan.object()
            yield from scan.close_call(
                "</call>"
            )  # or what stands in its place where a model forgot it
            scan.call(name, arguments)


EXAMPLES = [
    ('<call>weather{"city": "Oslo", "days": 2}</call>', [("weather", {"city": "Oslo", "days": 2})]),
    (
        '<call>now{}</call>\n<call>add{"a": 1, "b": -2.5}</call>',
        [("now", {}), ("add", {"a": 1, "b": -2.5})],
    ),
]
"""Texts, and the calls in them: the conformance suite reads them in every chunking."""
FORMAT = ToolFormat(read, markers=("<call>", "</call>"), call_ends=("</call>",))

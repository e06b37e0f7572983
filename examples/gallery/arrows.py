"""Calls as `-> name {"argument": 1};`, with text around."""

from builtin_plugins.output_parsers.api import ToolFormat
from core.api import Entry, hookimpl

EXAMPLES = [
    ('-> weather {"city": "Oslo"};', [("weather", {"city": "Oslo"})]),
    ('-> now {}; -> add {"a": 1};', [("now", {}), ("add", {"a": 1})]),
]


def read(reader, request):
    while (yield from reader.content_until_call("->")):
        with reader.attempt():  # what breaks in here is text, all of it
            name = yield from reader.read_name()
            arguments = yield from reader.read_object()
            yield from reader.close_call(";")
            reader.add_call(name, arguments)


FORMAT = ToolFormat(read, markers=("->",), call_ends=(";",))


@hookimpl
def engine_tool_parsers():
    return [Entry("arrows", FORMAT, "calls after arrows")]

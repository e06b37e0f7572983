"""Calls between `@call` and `@end`."""

from builtin_plugins.output_parsers.api import OutputReader, ParseRequest, Reading, ToolFormat
from core.api import Entry, hookimpl


def read(reader: OutputReader, request: ParseRequest) -> Reading:
    while (yield from reader.content_until_call("@call")):  # shows content up to a tag
        with reader.attempt():  # on failure all of it is content
            name = yield from reader.read_name()
            call = reader.begin_call(name)
            arguments = yield from reader.read_arguments(call)  # streamed as they arrive
            yield from reader.close_call("@end")  # or a text that replaces it
            reader.add_call(name, arguments)


FORMAT = ToolFormat(read, markers=("@call", "@end"), call_ends=("@end",))
EXAMPLES = [('@call weather {"city": "Oslo"} @end', [("weather", {"city": "Oslo"})])]


@hookimpl
def engine_tool_parsers():
    return [Entry("at_calls", FORMAT, "calls between @call and @end")]

"""Calls in messages on channels. Handles reasoning too, so each parser works alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from builtin_plugins.output_parsers.api import (
    Broken,
    CallKeys,
    Channels,
    OutputReader,
    Reading,
    StreamedCall,
    read_channels,
    typed_value,
)
from builtin_plugins.output_parsers.channel_families import (
    COHERE,
    HARMONY,
    INKLING,
    KIMI_K3,
    MUSE,
    RECIPIENT,
    muse_inline_headers,
    no_inline_headers,
    tag_markers,
    template_hints,
)
from builtin_plugins.output_parsers.contract import ParseRequest, ToolFormat
from builtin_plugins.output_parsers.tools.json_calls import ARGUMENTS, read_one_or_list
from builtin_plugins.output_parsers.tools.tagged import read_arguments, read_name
from builtin_plugins.output_parsers.tools.tagged_families import invokes

ATEM: Final = invokes("<atem:function_calls>", "</atem:function_calls>", "atem:", literal=True)
COHERE_KEYS: Final = CallKeys(names=("tool_name",), ids=("tool_call_id",))
_ATTRIBUTE: Final = re.compile(r'(\w+)="([^"]*)"')
_ATTRIBUTES: Final = re.compile(r'(?:\s*\w++="[^"]*+")*+\s*')
_KIMI_SECTION: Final = "<|open|>tools<|sep|>"
_KIMI_SECTION_END: Final = "<|close|>tools<|sep|>"
_KIMI_CALL: Final = "<|open|>call"
_KIMI_CALL_END: Final = "<|close|>call<|sep|>"
_KIMI_ARGUMENT: Final = "<|open|>argument"
_KIMI_ARGUMENT_END: Final = "<|close|>argument<|sep|>"


def close_message(channels: Channels, reader: OutputReader) -> Reading:
    """Skip the end of a message, which the next start may replace; return the end."""
    return (yield from reader.close_call(*channels.message_ends, before=channels.header_starts))


def skip_message_end(channels: Channels, reader: OutputReader) -> Reading:
    """Skip the optional, perhaps cut off, end of a message with a complete call; return it."""
    found = yield from reader.skip_optional(*channels.message_ends, "<|")
    if found == "<|":
        reader.unread(found)
        found = yield from close_message(channels, reader)
    return found


def harmony_call(request: ParseRequest, reader: OutputReader, header: str) -> Reading:
    """Read the optional arguments of a call to the header's recipient."""
    found = RECIPIENT.search(header)
    name = found[1].removeprefix("functions.") if found else ""
    arguments: Any = {}
    if not (yield from reader.skip_optional(*HARMONY.message_ends)):
        arguments = yield from reader.read_arguments(reader.begin_call(name))
        yield from skip_message_end(HARMONY, reader)
    reader.add_call(name, arguments)


def inkling_call(request: ParseRequest, reader: OutputReader, header: str) -> Reading:
    """Read `{"name": ..., "args": {...}}`. Raises `Broken` if the header has another name."""
    written = header.partition("<|")[0]
    call = yield from reader.read_object(keys=CallKeys(arguments=("args",)))
    if written and written != call.get("name"):
        raise Broken
    yield from close_message(INKLING, reader)
    reader.add_call(call.get("name"), call.get("args") or {})


def cohere_call(request: ParseRequest, reader: OutputReader, header: str) -> Reading:
    """Read a list of `{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}`."""
    bracket = yield from reader.expect("[", "{")
    yield from read_one_or_list(reader, bracket, add_cohere_call, COHERE_KEYS)
    yield from close_message(COHERE, reader)


def add_cohere_call(reader: OutputReader, call: Mapping[str, Any]) -> None:
    """Add a call with the id that the model wrote."""
    call_id = call.get("tool_call_id")
    name = call.get("tool_name", call.get("name"))
    arguments = next((call[key] for key in call if key in ARGUMENTS), None)
    reader.add_call(name, arguments or {}, None if call_id is None else str(call_id))


def muse_call(request: ParseRequest, reader: OutputReader, header: str) -> Reading:
    """Read one or more `<atem:invoke>`."""
    yield from reader.skip_optional(ATEM.section[0])
    while (yield from reader.skip_optional(*ATEM.call)):
        name = without_namespace((yield from read_name(ATEM, reader)), request)
        reader.add_call(name, (yield from read_arguments(ATEM, reader, reader.begin_call(name))))
    if (yield from reader.skip_optional(ATEM.section[1])):
        return (yield from skip_message_end(MUSE, reader))
    return (yield from close_message(MUSE, reader))


def without_namespace(name: str, request: ParseRequest) -> str:
    """Return the tool of `name.name`: Muse's template puts each tool in a namespace of its name."""
    space, _, inner = name.partition(".")
    known = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    return space if space == inner and space in known and name not in known else name


def kimi_call(request: ParseRequest, reader: OutputReader, header: str) -> Reading:
    """Read the calls of a section; arguments declare their types."""
    while (yield from reader.skip_optional(_KIMI_SECTION)):
        reader.note_recovery("a begin written twice")
    if (yield from reader.skip_optional(_KIMI_SECTION_END)):
        reader.note_recovery("a begin and an end with nothing between them")
        reader.drop()
        return
    while (yield from reader.skip_optional(_KIMI_CALL)):
        tool = (yield from read_attributes(reader)).get("tool")
        arguments = yield from read_kimi_arguments(reader, reader.begin_call(tool or ""))
        before = (_KIMI_CALL, _KIMI_SECTION_END)
        ended = yield from reader.close_call(_KIMI_CALL_END, before=before)
        if not (arguments or ended):  # at the end of the output arguments may be missing
            raise Broken
        reader.add_call(tool, arguments)
        reader.keep_calls()
    yield from reader.close_call(_KIMI_SECTION_END, before=KIMI_K3.message_ends)


def read_kimi_arguments(reader: OutputReader, call: StreamedCall) -> Reading:
    """Return the arguments of a call. Of duplicate names the first counts."""
    arguments: dict[str, Any] = {}
    while found := (yield from reader.skip_optional(_KIMI_ARGUMENT, "{")):
        if found == "{":
            more = yield from reader.read_arguments(call, "{")
            return arguments | more | arguments
        given = yield from read_attributes(reader)
        key = given.get("key", "")
        declared = given.get("type") == "string"
        feed = call.stream_text(key, declared=True) if declared else None
        text, end = yield from reader.read_until(
            _KIMI_ARGUMENT_END, _KIMI_ARGUMENT, _KIMI_CALL_END, feed=feed
        )
        if end in (_KIMI_ARGUMENT, _KIMI_CALL_END):
            reader.unread(end)
        value = text if declared else typed_value(text, None)
        call.add_argument(key, value)
        arguments.setdefault(key, value)
    return arguments


def read_attributes(reader: OutputReader) -> Reading:
    """Return the attributes of a tag."""
    written, _ = yield from reader.read_until("<|sep|>")
    if not _ATTRIBUTES.fullmatch(written):
        raise Broken
    return {
        name: value.replace("&quot;", '"').replace("&amp;", "&")
        for name, value in _ATTRIBUTE.findall(written)
    }


def channel_format(
    channels: Channels,
    call: Callable[[ParseRequest, OutputReader, str], Reading],
    *more: str,
    inline: Callable[[ParseRequest], tuple[str, ...]] = no_inline_headers,
) -> ToolFormat:
    """Return the format of some channels. `more`: special tokens within their markers."""

    def read(reader: OutputReader, request: ParseRequest) -> Reading:
        yield from read_channels(channels, reader, partial(call, request), inline=inline(request))

    return ToolFormat(
        read,
        markers=(*tag_markers(channels), *more),
        call_ends=channels.message_ends,
        template_hints=template_hints(channels),
    )


KIMI_K3_FORMAT: Final = channel_format(KIMI_K3, kimi_call, "<|close|>")
COHERE_FORMAT: Final = replace(
    channel_format(COHERE, cohere_call),
    begins=("<|START_ACTION|>",),
    template_hints=("<|START_ACTION|>", "tool_call_id"),
)
HARMONY_FORMAT: Final = channel_format(HARMONY, harmony_call, "<|constrain|>")
INKLING_FORMAT: Final = channel_format(INKLING, inkling_call)
MUSE_FORMAT: Final = channel_format(MUSE, muse_call, inline=muse_inline_headers)

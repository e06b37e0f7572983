"""Calls between tags: the syntax of a family as data, and its reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from builtin_plugins.output_parsers.api import (
    Broken,
    Feed,
    OutputReader,
    Reading,
    StreamedCall,
    read_json,
    typed_value,
)
from builtin_plugins.output_parsers.contract import ParseRequest, ToolFormat
from builtin_plugins.output_parsers.tools.json_calls import KEYS, add_named_call


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """A family's tags. White space is allowed between consecutive texts."""

    call: tuple[str, ...]
    """Texts before a name."""
    named: tuple[str, ...]
    """Texts after a name."""
    end: tuple[str, ...]
    """Texts after the arguments."""
    section: tuple[str, str] = ("", "")
    """Optional texts around all calls."""
    key: str = ""
    """Text before an argument's name; "" if the arguments are one JSON object."""
    key_ends: tuple[str, ...] = ()
    """Alternative texts after an argument's name."""
    value: tuple[str, ...] = ()
    """Further texts before an argument's value."""
    type: tuple[str, str] = ("", "")
    """Texts around an argument's optional type."""
    value_end: str = ""
    """Text after an argument's value."""
    lines: bool = False
    """Values have lines of their own: the line breaks around them are layout."""
    literal: bool = False
    """Values other than strings are JSON, also for arguments without a schema."""
    exact: bool = False
    """Trailing white space belongs to the value even if the next argument ends it."""
    objects: bool = False
    """A call may also be one JSON object that holds its name."""
    ids: bool = False
    """Names are part of the call id: `functions.name:0`."""
    quoted: bool = False
    """Names have single, double or no quotes, up to a `>`."""
    spelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Alternative spellings of the first call text and of the key."""
    optional: tuple[str, ...] = ()
    """Texts around a name that may be missing."""
    between: tuple[str, ...] = ()
    """Texts that may follow calls like ends do."""

    @property
    def calls(self) -> tuple[str, ...]:
        """Texts that start a call."""
        return self.call[0], *self.spelled.get(self.call[0], ())

    @property
    def keys(self) -> tuple[str, ...]:
        """Texts that start an argument, if arguments have tags."""
        return (self.key, *self.spelled.get(self.key, ())) if self.key else ()

    @property
    def value_ends(self) -> tuple[str, ...]:
        """Texts that end a value: its end, or if omitted the next argument or the call's end."""
        return self.value_end, *self.keys, self.end[0]


def read_calls(
    spellings: Sequence[TagSyntax], reader: OutputReader, request: ParseRequest
) -> Reading:
    """Read content and calls, with or without a section."""
    starts = {text: tags for tags in spellings for text in (tags.section[0], *tags.calls) if text}
    while start := (yield from reader.content_until_call(*starts)):
        tags = starts[start]
        with reader.attempt():
            opened = yield from object_begins(tags, reader)
            if not opened and start not in tags.calls:
                optional = tags.call[0] in tags.optional
                skip = reader.skip_optional if optional else reader.expect
                yield from skip(*tags.calls)
            if not opened:
                yield from skip_all(reader, tags.call[1:], tags.optional)
                opened = yield from object_begins(tags, reader)
            if opened:
                add_named_call(reader, (yield from reader.read_object("{", KEYS)))
                yield from reader.close_call(*tags.end)
                continue
            written = yield from read_name(tags, reader)
            name, call_id = name_and_id(written) if tags.ids else (written, None)
            counted = tags.ids and written.isdecimal()
            arguments = yield from read_arguments(
                tags, reader, reader.begin_call("" if counted else name, call_id)
            )
            if counted:
                name = only_tool_for(arguments, request)
                call_id = written
            reader.add_call(name, arguments, call_id)


def object_begins(tags: TagSyntax, reader: OutputReader) -> Reading:
    """Skip the first bracket of a call that is one object; return whether it follows."""
    return bool(tags.objects and (yield from reader.skip_optional("{")))


def skip_all(reader: OutputReader, texts: Iterable[str], optional: Sequence[str] = ()) -> Reading:
    """Skip consecutive texts, of which some are optional."""
    for text in texts:
        skip = reader.skip_optional if text in optional else reader.expect
        yield from skip(text)


def read_name(tags: TagSyntax, reader: OutputReader) -> Reading:
    """Return the next name, reading through the texts after it."""
    if tags.quoted:
        yield from reader.skip_optional('"', "'")
    name = yield from reader.read_name()
    if tags.quoted:
        rest, _ = yield from read_text_until(reader, ">")
        if rest.strip() and rest[0] not in "\"'":  # more than one word without quotes
            raise Broken
    yield from skip_all(reader, tags.named, tags.optional)
    return name


def read_text_until(reader: OutputReader, *ends: str) -> Reading:
    """Return (text, end). Raises `Broken` if another tag starts first."""
    text, end = yield from reader.read_until(*ends, "<")
    if end == "<":
        raise Broken
    return text, end


def read_arguments(tags: TagSyntax, reader: OutputReader, call: StreamedCall) -> Reading:
    """Return the arguments, reading through the call's end. Of duplicate names the first counts."""
    arguments: dict[str, Any] = {}
    while found := (yield from reader.skip_optional(*tags.keys, "{")):
        if found == "{":
            more = yield from reader.read_arguments(call, "{")
            arguments = arguments | more | arguments
            break
        key, key_end = yield from read_text_until(reader, *tags.key_ends, *tags.value)
        if key_end in tags.value:
            reader.note_recovery(f"the end of an argument's name is missing before {key_end}")
            reader.unread(key_end)
        key = key.strip().strip("\"'") if tags.quoted else key.strip()
        if tags.type[0] and (yield from reader.skip_optional(tags.type[0])):
            key_end = yield from read_type(tags, reader, key_end)
        yield from skip_all(reader, tags.value)
        value = yield from read_value(tags, reader, key, key_end, call)
        call.add_argument(key, value)
        arguments.setdefault(key, value)
    ended = ""
    section_end = [text for text in tags.section[1:] if text]
    for end in tags.end:
        ended = (yield from reader.close_call(end, before=section_end)) or ended
    if not (arguments or found or ended):  # at the end of the output arguments may be missing
        raise Broken
    return arguments


def read_type(tags: TagSyntax, reader: OutputReader, key_end: str) -> Reading:
    """Return an argument's stated type as a key's end; without an end of its own, the given one."""
    stated, end = yield from reader.read_until(tags.type[1], *tags.value)
    if end in tags.value:
        reader.note_recovery(f"the end of a type is missing before {end}")
        reader.unread(end)
        return key_end
    return f'="{str(stated == "string").lower()}">'


def read_value(
    tags: TagSyntax, reader: OutputReader, key: str, key_end: str, call: StreamedCall
) -> Reading:
    """Return an argument's value as the type of its tag or of the tool's schema."""
    schema = call.schema_of(key)
    if key_end.endswith('="false">'):  # the tag declares JSON
        text = yield from read_text(tags, reader, key_end, None)
        return typed_value(unquoted(text), schema)
    declared = key_end.endswith('="true">')  # declared a string; the schema decides
    feed = call.stream_text(key, literal=tags.literal, declared=declared, lines=tags.lines)
    text = yield from read_text(tags, reader, key_end, feed)
    return text if declared else typed_value(text, schema, literal=tags.literal)


def unquoted(text: str) -> str:
    """Return the string of a quoted JSON value; any other text unchanged."""
    try:
        value = read_json(text) if text.strip()[:1] == '"' else text
    except Broken:
        return text
    return value if isinstance(value, str) else text


def read_text(tags: TagSyntax, reader: OutputReader, key_end: str, feed: Feed | None) -> Reading:
    """Return an argument's value as text; `feed` receives it piece by piece."""
    if key_end.endswith("[CDATA["):
        text, _ = yield from reader.read_until("]]>" + tags.value_end, feed=feed)
        return text
    text, end = yield from reader.read_until(*tags.value_ends, feed=feed)
    if end != tags.value_end:
        reader.note_recovery(f"the end of a value is missing before {end}")
        reader.unread(end)
        text = text if tags.exact and end in tags.keys else text.rstrip()
    return text.removeprefix("\n").removesuffix("\n") if tags.lines else text


def name_and_id(written: str) -> tuple[str, str | None]:
    """Return name and id of `functions.name:0`; any other text is a name without an id."""
    name, colon, index = written.rpartition(":")
    if not (colon and index.isdecimal()):
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written


def only_tool_for(arguments: Mapping[str, Any], request: ParseRequest) -> str:
    """Return the only tool that accepts the arguments. Raises `Broken` if it is not unique."""
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    fitting = [
        name
        for name in tools
        if arguments.keys() <= request.parameters(name).get("properties", {}).keys()
    ]
    if len(fitting) != 1:
        raise Broken
    return fitting[0]


def tag_format(*spellings: TagSyntax, **given: Any) -> ToolFormat:
    """Return the format of one or several spellings; tags may be special tokens."""
    marks = [
        text
        for tags in spellings
        for text in texts_of(tags)
        if text[:1] == "<" and text[-1:] == ">"
    ]
    tags = spellings[0]
    template_hints = tuple(filter(None, (tags.section[0], tags.call[0], tags.key)))
    stated = {
        "markers": tuple(dict.fromkeys(marks)),
        "call_ends": ends_of(*spellings),
        "begins": tuple(tags.section[0] or tags.call[0] for tags in spellings),
        "template_hints": template_hints,
        **given,
    }
    return ToolFormat(partial(read_calls, spellings), **stated)


def texts_of(tags: TagSyntax) -> tuple[str, ...]:
    """Return all texts of a syntax."""
    return (
        *tags.section,
        *tags.call,
        *tags.named,
        *tags.end,
        tags.key,
        *tags.value,
        tags.value_end,
        *tags.type,
    )


def ends_of(*spellings: TagSyntax) -> tuple[str, ...]:
    """Return the texts that end a call or all calls."""
    return tuple(
        text for tags in spellings for text in (*tags.end, tags.section[1], *tags.between) if text
    )

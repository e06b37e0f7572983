"""Calls whose name, and often whose arguments, stand between tags: what may stand where, and how it
is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from builtin_plugins.output_parsers.tools.json_calls import KEYS, named
from core.api import (
    Broken,
    Feed,
    ParseRequest,
    Reading,
    Scan,
    Told,
    ToolFormat,
    read_json,
    typed_value,
)


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands where.

    Where several texts follow each other there may be white space between them.
    """

    call: tuple[str, ...]
    """In front of a name."""
    named: tuple[str, ...]
    """Behind a name."""
    end: tuple[str, ...]
    """Behind the arguments."""
    section: tuple[str, str] = ("", "")
    """Around all calls, where a family has it; read without it as well."""
    key: str = ""
    """In front of an argument's name; "" where the arguments are one JSON object."""
    key_ends: tuple[str, ...] = ()
    """Behind an argument's name: one of these."""
    value: tuple[str, ...] = ()
    """In front of an argument's value, where more stands there."""
    type: tuple[str, str] = ("", "")
    """Around an argument's type, where it may be written in front of the value."""
    value_end: str = ""
    lines: bool = False
    """Values stand on lines of their own: the line breaks around them are layout."""
    literal: bool = False
    """Values other than texts are written as JSON: that they are where the tool's schema says
    nothing, too.
    """
    exact: bool = False
    """White space at the end of a value is its own, also where the next argument's begin ends it.
    """
    objects: bool = False
    """A call may also be one JSON object, its name in it."""
    ids: bool = False
    """A name is written as part of the call's id: `functions.name:0`."""
    quoted: bool = False
    """Names stand between quotes, of either kind or none, up to a `>`."""
    spelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How the first text of a call, or the key, is written as well."""
    optional: tuple[str, ...] = ()
    """Which texts in front of a name or behind it may be missing."""
    between: tuple[str, ...] = ()
    """What may stand behind calls as ends do."""

    @property
    def calls(self) -> tuple[str, ...]:
        """What begins a call."""
        return self.call[0], *self.spelled.get(self.call[0], ())

    @property
    def keys(self) -> tuple[str, ...]:
        """What begins an argument, if its name does."""
        return (self.key, *self.spelled.get(self.key, ())) if self.key else ()

    @property
    def value_ends(self) -> tuple[str, ...]:
        """What ends a value: its own end, or where models forget that, the next argument's begin or
        the call's end.
        """
        return self.value_end, *self.keys, self.end[0]


def read(spellings: Sequence[Tags], scan: Scan, request: ParseRequest) -> Reading:
    """Read calls, in a section or not, text around."""
    starts = {text: tags for tags in spellings for text in (tags.section[0], *tags.calls) if text}
    while start := (yield from scan.text(*starts)):
        tags = starts[start]
        with scan.attempt():
            opened = yield from object_begins(tags, scan)
            if not opened and start not in tags.calls:
                yield from (scan.maybe if tags.call[0] in tags.optional else scan.expect)(
                    *tags.calls
                )
            if not opened:
                yield from all_of(scan, tags.call[1:], tags.optional)
                opened = yield from object_begins(tags, scan)
            if opened:
                named(scan, (yield from scan.object("{", KEYS)))
                yield from scan.close_call(*tags.end)
                continue
            written = yield from read_name(tags, scan)
            name, call_id = name_and_id(written) if tags.ids else (written, None)
            counted = tags.ids and written.isdecimal()
            arguments = yield from read_arguments(
                tags, scan, scan.begin("" if counted else name, call_id)
            )
            if counted:
                name = only_tool_for(arguments, request)
                call_id = written
            scan.call(name, arguments, call_id)


def object_begins(tags: Tags, scan: Scan) -> Reading:
    """Skip the first bracket of a call that is one object; say whether it is there."""
    return bool(tags.objects and (yield from scan.maybe("{")))


def all_of(scan: Scan, texts: Iterable[str], optional: Sequence[str] = ()) -> Reading:
    """Skip some texts, one after the other, of which some may be missing."""
    for text in texts:
        yield from (scan.maybe if text in optional else scan.expect)(text)


def read_name(tags: Tags, scan: Scan) -> Reading:
    """Return the name that follows, read up to and over what stands behind it."""
    if tags.quoted:
        yield from scan.maybe('"', "'")
    name = yield from scan.word()
    if tags.quoted:
        yield from up_to(scan, ">")
    yield from all_of(scan, tags.named, tags.optional)
    return name


def up_to(scan: Scan, *ends: str) -> Reading:
    """Return the text up to an end, and the end. Raises `Broken` where another tag begins first."""
    text, end = yield from scan.take(*ends, "<")
    if end == "<":
        raise Broken
    return text, end


def read_arguments(tags: Tags, scan: Scan, told: Told) -> Reading:
    """Return the arguments, read up to and over what ends the call; of one that is written twice
    the first counts.
    """
    arguments: dict[str, Any] = {}
    while found := (yield from scan.maybe(*tags.keys, "{")):
        if found == "{":
            more = yield from scan.arguments(told, "{")
            arguments = arguments | more | arguments
            break
        key, key_end = yield from up_to(scan, *tags.key_ends, *tags.value)
        if key_end in tags.value:
            scan.recovered(f"the end of an argument's name is missing before {key_end}")
            scan.unread(key_end)
        key = key.strip().strip("\"'") if tags.quoted else key.strip()
        if tags.type[0] and (yield from scan.maybe(tags.type[0])):
            stated, _ = yield from scan.take(tags.type[1])
            key_end = f'="{str(stated == "string").lower()}">'
        yield from all_of(scan, tags.value)
        value = yield from read_value(tags, scan, key, key_end, told)
        told.argument(key, value)
        arguments.setdefault(key, value)
    ended = ""
    for end in tags.end:
        ended = (
            yield from scan.close_call(end, before=[text for text in tags.section[1:] if text])
        ) or ended
    if not (arguments or found or ended):  # the output ends where arguments may have been to come
        raise Broken
    return arguments


def read_value(tags: Tags, scan: Scan, key: str, key_end: str, told: Told) -> Reading:
    """Return an argument's value, of the type that its tag or the tool's schema states."""
    schema = told.schema_of(key)
    if key_end.endswith('="false">'):  # the tag says that it is JSON
        text = yield from read_text(tags, scan, key_end, None)
        return typed_value(unquoted(text), schema)
    declared = key_end.endswith(
        '="true">'
    )  # it says that the value is a text; the schema may know better
    feed = told.text(key, literal=tags.literal, declared=declared, lines=tags.lines)
    text = yield from read_text(tags, scan, key_end, feed)
    return text if declared else typed_value(text, schema, literal=tags.literal)


def unquoted(text: str) -> str:
    """Return the text that a value is whose tag says that it is JSON; JSON that is no text stays as
    it is written.
    """
    try:
        value = read_json(text) if text.strip()[:1] == '"' else text
    except Broken:
        return text
    return value if isinstance(value, str) else text


def read_text(tags: Tags, scan: Scan, key_end: str, feed: Feed | None) -> Reading:
    """Return an argument's value as it is written; `feed` takes it piece by piece."""
    if key_end.endswith("[CDATA["):
        text, _ = yield from scan.take("]]>" + tags.value_end, feed=feed)
        return text
    text, end = yield from scan.take(*tags.value_ends, feed=feed)
    if end != tags.value_end:
        scan.recovered(f"the end of a value is missing before {end}")
        scan.unread(end)
        text = text if tags.exact and end in tags.keys else text.rstrip()
    return text.removeprefix("\n").removesuffix("\n") if tags.lines else text


def name_and_id(written: str) -> tuple[str, str | None]:
    """Split `functions.name:0`; what is written otherwise is a name alone."""
    name, colon, index = written.rpartition(":")
    if not (colon and index.isdecimal()):
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written


def only_tool_for(arguments: Mapping[str, Any], request: ParseRequest) -> str:
    """Return the tool that takes such arguments, of a call that gives a count for its name.

    Raises `Broken` if unsure.
    """
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    fitting = [
        name
        for name in tools
        if arguments.keys() <= request.parameters(name).get("properties", {}).keys()
    ]
    if len(fitting) != 1:
        raise Broken
    return fitting[0]


def form(*spellings: Tags, **given: Any) -> ToolFormat:
    """Return a format, perhaps with several spellings; which texts are special tokens is the
    tokenizer's to say.
    """
    marks = [
        text
        for tags in spellings
        for text in texts_of(tags)
        if text[:1] == "<" and text[-1:] == ">"
    ]
    tags = spellings[0]
    signs = tuple(filter(None, (tags.section[0], tags.call[0], tags.key)))
    stated = {
        "markers": tuple(dict.fromkeys(marks)),
        "call_ends": ends_of(*spellings),
        "signs": signs,
        **given,
    }
    return ToolFormat(partial(read, spellings), **stated)


def texts_of(tags: Tags) -> tuple[str, ...]:
    """Return all that tags are written with."""
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


def ends_of(*spellings: Tags) -> tuple[str, ...]:
    """Return what ends a call, or all of them."""
    return tuple(
        text for tags in spellings for text in (*tags.end, tags.section[1], *tags.between) if text
    )

"""Outputs made of messages with headers: reasoning, content or tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from builtin_plugins.output_parsers.runtime.json_text import Broken
from builtin_plugins.output_parsers.runtime.reader import OutputReader
from builtin_plugins.output_parsers.runtime.text_stream import Reading

MessageKind = Literal["reasoning", "content", "call", "hidden"]
"""What a message is; a `hidden` message is not sent to the client."""


@dataclass(frozen=True, slots=True)
class Channels:
    """A family's message syntax: `start header header-end text message-end`."""

    header_starts: tuple[str, ...]
    """Markers that start a header."""
    header_ends: tuple[str, ...]
    """Markers that end a header."""
    message_ends: tuple[str, ...]
    """Markers that end a message."""
    classify: Callable[[str], MessageKind]
    """Returns the kind of a message from its header, markers included."""
    continuations: tuple[str, ...] = ()
    """Texts that may start the output when the prompt has started a header."""
    named_ends: tuple[str, ...] = ()
    """Header ends that may follow a name there."""
    output_ends: tuple[str, ...] = ()
    """Message ends that end the whole output; the text after them is dropped."""
    separator: str = ""
    """Text between two content messages."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (*self.header_starts, *self.header_ends, *self.message_ends)


def read_channels(
    channels: Channels,
    reader: OutputReader,
    call: Callable[[OutputReader, str], Reading] | None,
    inside: MessageKind | None = None,
    inline: tuple[str, ...] = (),
) -> Reading:
    """Read messages: show reasoning and content, and let `call` read the text of calls.

    `call` gets the header and returns the marker that ended the call. Without it calls stay
    content, for the tool parser. `inside`: kind of the message that the prompt has started.
    `inline`: complete headers that start a message without a start marker.
    """
    starts = (*channels.header_starts, *inline)
    bare_starts = (*channels.header_ends, *inline)
    begins = [text for text in starts if text == starts[0] or text in bare_starts]
    first = inside is None
    end = None
    if inside is not None:
        end = yield from _text(channels, reader, inside, starts)
    answered = inside == "content"
    bare = False
    while True:
        kind: MessageKind | None = None
        start = None
        if not first:
            start = yield from _next_start(channels, reader, starts, begins, end, bare=bare)
            if start is None:
                return
        end = None
        bare = False
        with reader.attempt():
            name = ""
            if first:
                name, start = yield from _continuation(channels, reader)
                bare = start is None
            header = yield from _header(channels, reader, start, bare_starts)
            kind = channels.classify(header)
            if kind == "call":
                if call is None:
                    raise Broken
                end = yield from call(reader, name + header)
            else:
                reader.drop()
        if kind == "content" and answered:
            reader.separate(channels.separator)
        if kind is not None and kind != "call":
            end = yield from _text(channels, reader, kind, starts)
        answered = answered or kind == "content"
        first = False


def _next_start(
    channels: Channels,
    reader: OutputReader,
    starts: tuple[str, ...],
    begins: list[str],
    end: str | None,
    *,
    bare: bool,
) -> Reading:
    """Show text up to the next start marker; return it, or None at the end of the output.

    `end`: marker that ended the previous message. `bare`: the text after it has no header.
    """
    while end not in channels.output_ends:
        ends = channels.message_ends if bare or reader.at_block_start else ()
        start = yield from reader.content_until_call(*starts, *ends, begins=begins)
        if start not in channels.message_ends:
            return start
        reader.drop()  # the end marker is doubled, or ends a bare text
        end = start
        bare = False
    yield from reader.skip_until()
    return None


def _continuation(channels: Channels, reader: OutputReader) -> Reading:
    """Read the rest of a header that the prompt has started; return its name and its marker.

    The name may be empty, the marker None.
    """
    name = ""
    start = yield from reader.skip_optional(*channels.continuations)
    if start is None and channels.named_ends:
        name = yield from reader.read_name()
        start = yield from reader.skip_optional(*channels.named_ends)
    return name, start


def _header(
    channels: Channels, reader: OutputReader, start: str | None, bare_starts: tuple[str, ...]
) -> Reading:
    """Return the header after a start marker, markers included.

    Raises `Broken` without a start marker or a header end.
    """
    if start is None:
        raise Broken
    if start in bare_starts:
        return start
    text, end = yield from reader.read_until(
        *channels.header_ends, *channels.message_ends, channels.header_starts[0]
    )
    if end not in channels.header_ends:  # the text after a broken header is separate
        raise Broken
    return f"{start}{text}{end}" if start != end else start


def _text(
    channels: Channels, reader: OutputReader, kind: MessageKind, starts: tuple[str, ...]
) -> Reading:
    """Show a message's text; return its end marker, or None if another start or nothing ends it."""
    show = {
        "reasoning": reader.reasoning_until,
        "content": reader.content_until,
        "hidden": reader.skip_until,
    }[kind]
    end = yield from show(*channels.message_ends, *starts)
    if end in starts:
        reader.unread(end)
        return None
    reader.drop()
    return end

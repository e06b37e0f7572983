"""Outputs that are messages, each with a header that says what it is for: thoughts, the answer, or
a tool's call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from builtin_plugins.output_parsers.runtime.formats import Reading
from builtin_plugins.output_parsers.runtime.json_text import Broken
from builtin_plugins.output_parsers.runtime.scan import Scan

Kind = Literal["thoughts", "answer", "call", "hidden"]
"""What a message is: `hidden` is one for nobody who reads the answer."""


@dataclass(frozen=True, slots=True)
class Channels:
    """How a family writes messages: `start header head text end`."""

    starts: tuple[str, ...]
    """Where headers begin."""
    heads: tuple[str, ...]
    """What ends a header."""
    ends: tuple[str, ...]
    """What ends a message."""
    kind: Callable[[str], Kind]
    """Says what a message is for, from its header with what is around it."""
    goes_on: tuple[str, ...] = ()
    """How the output may begin where the prompt has begun a header."""
    named: tuple[str, ...] = ()
    """Heads that may stand there behind a name."""
    stops: tuple[str, ...] = ()
    """Which of the ends ends the whole output: behind it nothing counts."""
    apart: str = ""
    """What stands between two messages of an answer."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All of its tags."""
        return (*self.starts, *self.heads, *self.ends)


def read_channels(
    channels: Channels,
    scan: Scan,
    call: Callable[[Scan, str], Reading] | None,
    inside: Kind | None = None,
    inline: tuple[str, ...] = (),
) -> Reading:
    """Show thoughts as reasoning and answers as content; `call` reads the text of a call, whose
    header it is given.

    It returns what ended the call, if that may end all. Without `call`, calls are content as they
    are written, for the tool parser to read. `inside`: the prompt has begun such a message.
    `inline`: headers with their heads that begin one without a start.
    """
    starts = (*channels.starts, *inline)
    first = inside is None
    end = None
    if inside is not None:
        end = yield from _text(channels, scan, inside, starts)
    begins = [text for text in starts if text == starts[0] or text in (*channels.heads, *inline)]
    answered = inside == "answer"
    bare = False
    while True:
        kind: Kind | None = None
        start = None
        if not first:
            if end in channels.stops:
                yield from scan.skip()
                return
            ends = channels.ends if bare or scan.fresh else ()
            start = yield from scan.text(*starts, *ends, begins=begins)
            if start is None:
                return
            if start in channels.ends:  # written twice, or of an answer that was not begun
                scan.drop()
                end = start
                bare = False
                continue
        end = None
        bare = False
        with scan.attempt():
            if first:
                start = yield from scan.maybe(*channels.goes_on)
                if start is None and channels.named:
                    yield from scan.word()
                    start = yield from scan.maybe(*channels.named)
                bare = start is None
                if bare:
                    raise Broken
            header = ""
            head = start
            if start not in channels.heads and start not in inline:
                header, head = yield from scan.take(
                    *channels.heads, *channels.ends, channels.starts[0]
                )
                if (
                    head not in channels.heads
                ):  # the header is broken, and what follows is not part of it
                    raise Broken
            header = f"{start}{header}{head}" if start != head else f"{start}"
            kind = channels.kind(header)
            if kind == "call":
                if call is None:
                    raise Broken
                end = yield from call(scan, header)
            else:
                scan.drop()
        if kind == "answer" and answered:
            scan.apart(channels.apart)
        if kind is not None and kind != "call":
            end = yield from _text(channels, scan, kind, starts)
        answered = answered or kind == "answer"
        first = False


def _text(channels: Channels, scan: Scan, kind: Kind, starts: tuple[str, ...]) -> Reading:
    """Show the text of a message; return what ended it, None where the next one begins or the
    output ends.
    """
    show = {"thoughts": scan.reasoning, "answer": scan.content, "hidden": scan.skip}[kind]
    end = yield from show(*channels.ends, *starts)
    if end in starts:
        scan.unread(end)
        return None
    scan.drop()
    return end

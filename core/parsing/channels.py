"""Outputs that are messages, each with a header that says what it is for: thoughts, the answer, or a tool's call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from core.parsing.formats import Reading
from core.parsing.json_text import Broken
from core.parsing.scan import Scan

Kind = Literal["thoughts", "answer", "call"]


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

    @property
    def markers(self) -> tuple[str, ...]:
        """All of its tags."""
        return (*self.starts, *self.heads, *self.ends)


def read_channels(
    channels: Channels, scan: Scan, call: Callable[[Scan, str], Reading] | None, inside: Kind | None = None
) -> Reading:
    """Show thoughts as reasoning and answers as content; `call` reads the text of a call, whose header it is given.

    Without `call`, calls are content as they are written, for the tool parser to read. `inside`: the prompt has begun
    such a message.
    """
    if inside is not None:
        yield from _text(channels, scan, inside)
    first, begins = True, [text for text in channels.starts if text == channels.starts[0] or text in channels.heads]
    while True:
        kind: Kind | None = None
        start = None
        if not first:
            ends = channels.ends if scan.fresh else ()
            start = yield from scan.text(*channels.starts, *ends, begins=begins)
            if start is None:
                return
            if start in channels.ends:  # written twice, or of an answer that was not begun
                scan.drop()
                continue
        with scan.attempt():
            if first:
                start = yield from scan.expect(*channels.goes_on)
            header, head = "", start
            if start not in channels.heads:
                header, head = yield from scan.take(*channels.heads, *channels.ends, channels.starts[0])
                if head not in channels.heads:  # the header is broken, and what follows is not part of it
                    raise Broken
            kind = channels.kind(f"{start}{header}{head}")
            if kind == "call":
                if call is None:
                    raise Broken
                yield from call(scan, f"{start}{header}{head}")
            else:
                scan.drop()
        if kind in ("thoughts", "answer"):
            yield from _text(channels, scan, kind)
        first = False


def _text(channels: Channels, scan: Scan, kind: Kind) -> Reading:
    """Show the text of a message."""
    show = scan.reasoning if kind == "thoughts" else scan.content
    end = yield from show(*channels.ends, *channels.starts)
    if end in channels.starts:
        scan.unread(end)
    else:
        scan.drop()

"""Events that a format finds in model text. Plain data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

Ranges = tuple[tuple[int, int], ...]
"""(start, end) of each special token spelled in a text, in order."""


class Text(msgspec.Struct, frozen=True):
    """A piece of content."""

    text: str
    specials: Ranges = ()
    broken: bool = False
    """True for the text of a broken call: all of it is visible, special tokens included."""


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of reasoning."""

    text: str
    specials: Ranges = ()


class Call(msgspec.Struct, frozen=True):
    """One complete tool call."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str | None = None
    """Id that the model itself wrote."""


class CallBegun(msgspec.Struct, frozen=True):
    """A tool call starts; its arguments follow."""

    index: int
    """Position of the call in the answer, from 0."""
    name: str
    id: str = ""
    """Call id; empty until one is assigned."""


class ArgumentsPiece(msgspec.Struct, frozen=True):
    """A piece of a call's arguments. Joined, the pieces of a complete call are a JSON object."""

    index: int
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call has ended."""

    index: int
    whole: bool = True
    """False if the call broke after its start: its arguments are an unclosed JSON prefix."""


class Recovery(msgspec.Struct, frozen=True):
    """How malformed text was read. Not visible to clients."""

    what: str


CallEvent = CallBegun | ArgumentsPiece | CallEnded
Event = Text | Reasoning | CallEvent | Recovery


def joined(pieces: Iterable[tuple[str, Ranges]]) -> tuple[str, list[tuple[int, int]]]:
    """Return consecutive pieces as one text, with the ranges of its special tokens."""
    texts: list[str] = []
    specials: list[tuple[int, int]] = []
    at = 0
    for text, found in pieces:
        texts.append(text)
        specials += [(at + start, at + end) for start, end in found]
        at += len(text)
    return "".join(texts), specials


def without_specials(event: Text | Reasoning) -> str:
    """Return the text without its special tokens; all of it for a broken call."""
    if not event.specials or (isinstance(event, Text) and event.broken):
        return event.text
    parts: list[str] = []
    at = 0
    for start, end in event.specials:
        parts.append(event.text[at:start])
        at = max(at, end)
    return "".join([*parts, event.text[at:]])

"""What a format finds in model text. Plain data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

Ranges = tuple[tuple[int, int], ...]
"""Where in a text special tokens are spelled: (start, end) of each, in order."""


class Text(msgspec.Struct, frozen=True):
    """Content, as it goes to the user."""

    text: str
    specials: Ranges = ()
    broken: bool = False
    """It was begun as a call and is none: all of it is shown, special tokens too."""


class Reasoning(msgspec.Struct, frozen=True):
    """What the model thought before, or between, what it said."""

    text: str
    specials: Ranges = ()


class Call(msgspec.Struct, frozen=True):
    """One whole tool call."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str | None = None
    """Where the model itself gives its calls ids."""


class CallBegun(msgspec.Struct, frozen=True):
    """A tool is called; its arguments follow."""

    index: int
    """Of the call in the answer, from 0."""
    name: str
    id: str = ""
    """Empty only where nobody has given it one yet."""


class ArgumentsPiece(msgspec.Struct, frozen=True):
    """Some of a call's arguments: the pieces of a whole call are the JSON text of an object."""

    index: int
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    """No more comes of a call."""

    index: int
    whole: bool = True
    """Else it broke behind its beginning: its arguments are the beginning of JSON, and never all of
    it.
    """


class Recovery(msgspec.Struct, frozen=True):
    """How something was read that is not as its format has it. Clients do not see it."""

    what: str


CallEvent = CallBegun | ArgumentsPiece | CallEnded
Event = Text | Reasoning | CallEvent | Recovery


def joined(pieces: Iterable[tuple[str, Ranges]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text that pieces are, one behind the other, and where in it special tokens are
    spelled.
    """
    texts = []
    specials = []
    at = 0
    for text, found in pieces:
        texts.append(text)
        specials += [(at + start, at + end) for start, end in found]
        at += len(text)
    return "".join(texts), specials


def without_specials(event: Text | Reasoning) -> str:
    """Return the text without the special tokens spelled in it, unless all of it is to be shown."""
    if not event.specials or (isinstance(event, Text) and event.broken):
        return event.text
    kept = []
    at = 0
    for start, end in event.specials:
        kept.append(event.text[at:start])
        at = max(at, end)
    return "".join([*kept, event.text[at:]])

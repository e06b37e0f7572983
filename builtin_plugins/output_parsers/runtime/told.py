"""Calls that are told while they are written: of their arguments as much as is certain, the last
bracket never.

What is told is the beginning of the text that `Scan.call` makes of the whole call, whatever the
pieces it comes in. Where the end of a value may still decide what it is, it waits for that end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.json_text import write_json
from builtin_plugins.output_parsers.runtime.values import (
    argument_schema,
    fitting_value,
    is_wrapper,
    schema_types,
)

Feed = Callable[[str], None]
"""Takes text that was read, piece by piece."""
_NOTHING: Final = ("null", "none")


class Told:
    """A call of which some may be told before it is whole."""

    def __init__(
        self,
        name: str,
        call_id: str | None,
        schema: Mapping[str, Any],
        tell: Callable[[Told, str, int], None] | None,
    ) -> None:
        """`tell` shows arguments' text, given how many of the characters that were read come behind
        what it stands for.

        None: nothing is told of this call, or nothing more.
        """
        self.name = name
        self.id = call_id
        self._schema = schema
        self._tell = tell
        self._said: list[str] = []
        self._keys: set[str] = set()
        self._text: _Text | None = None
        """The value that is being told as text."""

    @property
    def begun(self) -> bool:
        """Say whether anything was told."""
        return bool(self._said)

    @property
    def said(self) -> str:
        """What was told of the arguments."""
        return "".join(self._said)

    def say(self, text: str, behind: int = 0) -> None:
        """Tell more of the arguments' text."""
        if self._tell is not None:
            self._said.append(text)
            self._tell(self, text, behind)

    def schema_of(self, key: str) -> Any:
        """Return the schema of an argument; None where nothing is stated."""
        return argument_schema(key, self._schema)

    def front(self, key: str) -> str | None:
        """Return what stands in front of an argument's value; None where it is not told."""
        if not self._keys and is_wrapper(key, self._schema):
            self._tell = None  # whether the wrapper is taken off is known when all of it is
        if self._tell is None or key in self._keys:
            return None
        front = f"{', ' if self._keys else '{'}{write_json(key)}: "
        self._keys.add(key)
        return front

    def text(
        self, key: str, *, literal: bool = False, declared: bool = False, lines: bool = False
    ) -> Feed | None:
        """Return what takes an argument's value piece by piece; None where its end decides what it
        is.

        `literal`: what reads as JSON is that, where the schema says nothing. `declared`: the model
        says that it is text. `lines`: a line break in front of it is layout.
        """
        allowed = schema_types(self.schema_of(key))
        if declared:
            certain = not allowed or "string" in allowed
            maybe_null = False
        else:
            certain = allowed == {"string"} or not (allowed or literal)
            maybe_null = allowed == {"string", "null"}
        front = self.front(key) if certain or maybe_null else None
        if front is None:
            return None
        self._text = _Text(self, front, maybe_null=maybe_null, lines=lines)
        return self._text.feed

    def argument(self, key: str, value: Any) -> None:
        """Tell an argument whose value is whole; the first one of a name counts."""
        text = self._text
        self._text = None
        if text is not None:
            text.end(value)
            return
        front = self.front(key)
        if front is not None:
            self.say(front + write_json(fitting_value(value, self.schema_of(key))))


class _Text:
    """A value that is text: told but for the white space at its end, which may be layout."""

    def __init__(self, told: Told, front: str, *, maybe_null: bool, lines: bool) -> None:
        self._told = told
        self._front = front
        self._maybe_null = maybe_null
        self._lines = lines
        self._waits = False
        """Only the end says what the value is."""
        self._held: list[str] = []
        """White space, and in front of it what is not yet known to be text."""
        self._num_said = 0

    def feed(self, text: str) -> None:
        """Take some of the value."""
        body = text.rstrip()
        if not body or self._waits:
            self._held.append(text)
            return
        piece = "".join([*self._held, body])
        self._held = [text[len(body) :]]
        if self._maybe_null:
            word = piece.strip().lower()
            self._waits = word.startswith('"')
            if self._waits or any(nothing.startswith(word) for nothing in _NOTHING):
                self._held.insert(0, piece)
                return
            self._maybe_null = False
        if self._lines and not self._num_said:
            piece = piece.removeprefix("\n")
        self._say(piece, len(text) - len(body))

    def end(self, value: Any) -> None:
        """Take the whole value."""
        if isinstance(value, str):
            self._say(value[self._num_said :], 0, '"')
        else:
            self._told.say(self._front + write_json(value))

    def _say(self, text: str, behind: int, quote: str = "") -> None:
        front = "" if self._num_said else f'{self._front}"'
        self._num_said += len(text)
        self._told.say(f"{front}{write_json(text)[1:-1]}{quote}", behind)

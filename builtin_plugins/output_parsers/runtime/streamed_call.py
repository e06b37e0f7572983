"""Streams a call's arguments while the model writes them, except for the last bracket.

The emitted text is always a prefix of the arguments that `OutputReader.add_call` builds from the
complete call, whatever the chunking. A value with a type that depends on its end waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.json_text import write_json
from builtin_plugins.output_parsers.runtime.values import (
    argument_schema,
    coerce_value,
    is_wrapper,
    schema_types,
)

Feed = Callable[[str], None]
"""Receives text piece by piece as it is read."""
_NOTHING: Final = ("null", "none")


class StreamedCall:
    """A call with arguments that may be emitted before it is complete."""

    def __init__(
        self,
        name: str,
        call_id: str | None,
        schema: Mapping[str, Any],
        emit: Callable[[StreamedCall, str, int], None] | None,
    ) -> None:
        """`emit` gets arguments text and the number of read characters after its source.

        None: nothing of this call is streamed.
        """
        self.name = name
        self.id = call_id
        self._schema = schema
        self._emit = emit
        self._emitted: list[str] = []
        self._keys: set[str] = set()
        self._text: _StreamedText | None = None
        """The value that is streamed as text now."""

    @property
    def started(self) -> bool:
        """True when some arguments text is emitted."""
        return bool(self._emitted)

    @property
    def emitted(self) -> str:
        """The arguments text emitted so far."""
        return "".join(self._emitted)

    def emit(self, text: str, num_after: int = 0) -> None:
        """Emit arguments text; its source ends `num_after` characters before the read position."""
        if self._emit is not None:
            self._emitted.append(text)
            self._emit(self, text, num_after)

    def schema_of(self, key: str) -> Any:
        """Return the schema of an argument; None if there is none."""
        return argument_schema(key, self._schema)

    def prefix_for(self, key: str) -> str | None:
        """Return the JSON before an argument's value; None if the value is not streamed."""
        if not self._keys and is_wrapper(key, self._schema):
            self._emit = None  # only the complete call decides whether the wrapper is removed
        if self._emit is None or key in self._keys:
            return None
        prefix = f"{', ' if self._keys else '{'}{write_json(key)}: "
        self._keys.add(key)
        return prefix

    def stream_text(
        self, key: str, *, literal: bool = False, declared: bool = False, lines: bool = False
    ) -> Feed | None:
        """Return a feed that streams an argument as text; None if its end decides the type.

        `literal`: JSON-like text is JSON if there is no schema. `declared`: the model declares the
        value a string. `lines`: a leading line break is layout.
        """
        allowed = schema_types(self.schema_of(key))
        maybe_null = False
        if declared:
            certain = not allowed or "string" in allowed
        else:
            certain = allowed == {"string"} or not (allowed or literal)
            maybe_null = allowed == {"string", "null"}
        prefix = self.prefix_for(key) if certain or maybe_null else None
        if prefix is None:
            return None
        self._text = _StreamedText(self, prefix, maybe_null=maybe_null, lines=lines)
        return self._text.feed

    def add_argument(self, key: str, value: Any) -> None:
        """Emit a complete argument. Of duplicate names the first counts."""
        text = self._text
        self._text = None
        if text is not None:
            text.end(value)
            return
        prefix = self.prefix_for(key)
        if prefix is not None:
            self.emit(prefix + write_json(coerce_value(value, self.schema_of(key))))


class _StreamedText:
    """A string value, streamed except for trailing white space, which may be layout."""

    def __init__(self, call: StreamedCall, prefix: str, *, maybe_null: bool, lines: bool) -> None:
        self._call = call
        self._prefix = prefix
        self._maybe_null = maybe_null
        self._lines = lines
        self._waits = False
        """Only the end decides what the value is."""
        self._held: list[str] = []
        """Pending white space, after text that may still turn out to be null."""
        self._num_emitted = 0

    def feed(self, text: str) -> None:
        """Add a piece of the value."""
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
        if self._lines and not self._num_emitted:
            piece = piece.removeprefix("\n")
        self._emit(piece, len(text) - len(body))

    def end(self, value: Any) -> None:
        """Finish with the complete value."""
        if isinstance(value, str):
            self._emit(value[self._num_emitted :], 0, '"')
        else:
            self._call.emit(self._prefix + write_json(value))

    def _emit(self, text: str, num_after: int, quote: str = "") -> None:
        prefix = "" if self._num_emitted else f'{self._prefix}"'
        self._num_emitted += len(text)
        self._call.emit(f"{prefix}{write_json(text)[1:-1]}{quote}", num_after)

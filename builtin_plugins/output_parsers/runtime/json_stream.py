"""Incremental reader of JSON tool calls: streams the arguments while the JSON arrives."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from builtin_plugins.output_parsers.runtime.json_text import (
    Broken,
    JsonTokens,
    Token,
    read_json,
    write_json,
)
from builtin_plugins.output_parsers.runtime.streamed_call import Feed, StreamedCall
from builtin_plugins.output_parsers.runtime.values import coerce_value, keyword_schema, schema_types

_JsonReading = Generator[None, Token, Any]
"""A part of the grammar in progress: it is sent one token at a time."""


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Keys of a call that is a JSON object. Of several keys of one kind the first counts."""

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    """Keys of the model's own call id, which must be known before anything is streamed."""
    inner: str = ""
    """Key of an object that holds the whole call."""


def stream_arguments(call: StreamedCall) -> Feed:
    """Return a feed for the JSON object of a call's arguments."""
    return _CallStream(lambda stream: stream.arguments(call)).feed


def stream_call(keys: CallKeys, begin: Callable[[str, str | None, int], StreamedCall]) -> Feed:
    """Return a feed for the JSON object of a call, or for a list that starts with one."""
    return _CallStream(lambda stream: stream.call(keys, begin)).feed


class _CallStream:
    """Parses as much of the JSON grammar as it needs. Stops emitting at the first syntax error."""

    def __init__(self, reading: Callable[[_CallStream], _JsonReading]) -> None:
        self._tokens = JsonTokens()
        self._num_fed = 0
        self._call: StreamedCall | None = None
        self._prefix = ""
        """JSON to emit before the next text."""
        self._reading: _JsonReading | None = reading(self)
        next(self._reading)

    def feed(self, text: str) -> None:
        """Parse more of the JSON."""
        if self._reading is None:
            return
        self._num_fed += len(text)
        try:
            for token in self._tokens.feed(text):
                self._reading.send(token)
        except (StopIteration, Broken):
            self._reading = None

    def call(
        self, keys: CallKeys, begin: Callable[[str, str | None, int], StreamedCall]
    ) -> _JsonReading:
        """Parse a call up to its arguments, then stream those."""
        token = yield
        if token[0] == "[":
            token = yield
        name = call_id = None
        while token[0] in "{,":
            key = yield from self._key((yield))
            token = yield
            if key in keys.arguments:
                has_name = isinstance(name, str) and name.strip()
                if token[0] == "{" and has_name and (call_id is not None or not keys.ids):
                    yield from self._arguments(begin(str(name), call_id, self._num_after))
                return
            if key == keys.inner and token[0] == "{":
                continue
            value = yield from _whole(token)
            if key in keys.names and name is None:
                name = read_json(value)
            elif key in keys.ids and call_id is None:
                call_id = str(read_json(value))
            token = yield

    def arguments(self, call: StreamedCall) -> _JsonReading:
        """Stream a call's arguments."""
        if (yield)[0] == "{":
            yield from self._arguments(call)

    def _arguments(self, call: StreamedCall) -> _JsonReading:
        """Emit everything after the opening bracket, except for the closing one."""
        self._call = call
        yield from self._pairs(call.prefix_for, call.schema_of)

    def _pairs(
        self, prefix_for: Callable[[str], str | None], schema_of: Callable[[str], Any]
    ) -> _JsonReading:
        """Emit the pairs of an object, reading through its closing bracket."""
        token = yield
        while token[0] != "}":
            key = yield from self._key(token)
            value = yield
            prefix = prefix_for(key)
            if prefix is None:
                yield from _whole(value)
            else:
                self._prefix += prefix
                yield from self._value(value, schema_of(key))
            token = yield
            if token[0] == ",":
                token = yield
                if token[0] == "}":
                    raise Broken
            elif token[0] != "}":
                raise Broken

    def _value(self, token: Token, schema: Any) -> _JsonReading:
        kind = token[0]
        allowed = schema_types(schema)
        if kind == '"' and (not allowed or "string" in allowed):
            self._emit('"')
            while (token := (yield))[0] == "text":
                self._emit(write_json(read_json(f'"{token[1]}"'))[1:-1])
            self._emit('"')
        elif kind == "{" and allowed != {"string"}:
            pairs = _Pairs()
            known = keyword_schema(schema, "properties")
            yield from self._pairs(pairs.prefix_for, known.get)
            self._emit("}" if pairs.keys else "{}")
        elif kind == "[" and allowed != {"string"}:
            yield from self._items(keyword_schema(schema, "items"))
        else:
            whole = yield from _whole(token)
            self._emit(write_json(coerce_value(read_json(whole), schema)))

    def _items(self, schema: Any) -> _JsonReading:
        """Emit the items of a list, reading through its closing bracket."""
        self._prefix += "["
        token = yield
        if token[0] == "]":
            self._emit("]")
            return
        while True:
            yield from self._value(token, schema)
            token = yield
            if token[0] == "]":
                self._emit("]")
                return
            if token[0] != ",":
                raise Broken
            self._prefix += ", "
            token = yield

    def _key(self, token: Token) -> _JsonReading:
        """Return the key that a token starts, reading through its colon."""
        if token[0] != '"':
            raise Broken
        key = read_json((yield from _whole(token)))
        if (yield)[0] != ":":
            raise Broken
        return key

    def _emit(self, text: str) -> None:
        if self._call is not None:
            self._call.emit(self._prefix + text, self._num_after)
        self._prefix = ""

    @property
    def _num_after(self) -> int:
        """Number of fed characters after the last token."""
        return self._num_fed - self._tokens.at


class _Pairs:
    """The keys of a nested object."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def prefix_for(self, key: str) -> str | None:
        """Return the JSON before a key's value; None for a duplicate key."""
        if key in self.keys:
            return None
        prefix = f"{', ' if self.keys else '{'}{write_json(key)}: "
        self.keys.add(key)
        return prefix


def _whole(token: Token) -> _JsonReading:
    """Return the text of the value that a token starts."""
    if token[0] in ":,}]":
        raise Broken
    parts: list[str] = []
    depth = 0
    while True:
        kind, written = token
        parts.append(f" {written}" if kind == "word" else written)
        depth += (kind in '{["') - (kind in "}]" or kind == "end")
        if not depth:
            return "".join(parts)
        token = yield

"""JSON that is read along with while it comes: what it says of a call is told, in the form in which
it is noted at last.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from builtin_plugins.output_parsers.runtime.json_text import Broken, read_json, write_json
from builtin_plugins.output_parsers.runtime.json_tokens import JsonTokens, Token
from builtin_plugins.output_parsers.runtime.told import Feed, Told
from builtin_plugins.output_parsers.runtime.values import fitting_value, schema_types, stated

_Reading = Generator[None, Token, Any]
"""Some JSON under way: it is sent token after token."""


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Under which keys a call that is a JSON object says what it is; of those of one kind the first
    in the text counts.
    """

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    """Where a model gives its calls ids, one must be known before anything is told."""
    inner: str = ""
    """Under which all of it may stand."""


def arguments_followed(told: Told) -> Feed:
    """Return what reads along with the object that a call's arguments are."""
    return _Follower(lambda follower: follower.arguments(told)).feed


def call_followed(keys: CallKeys, begin: Callable[[str, str | None, int], Told]) -> Feed:
    """Return what reads along with the object that a call is, or the list of which it is the first."""
    return _Follower(lambda follower: follower.call(keys, begin)).feed


class _Follower:
    """Reads as much of JSON's grammar as it needs; where that is broken it tells no more."""

    def __init__(self, reading: Callable[[_Follower], _Reading]) -> None:
        self._tokens = JsonTokens()
        self._num_fed = 0
        self._told: Told | None = None
        self._front = ""
        """What stands in front of the next text that is told."""
        self._reading: _Reading | None = reading(self)
        next(self._reading)

    def feed(self, text: str) -> None:
        """Take more of the JSON."""
        if self._reading is None:
            return
        self._num_fed += len(text)
        try:
            for token in self._tokens.feed(text):
                self._reading.send(token)
        except (StopIteration, Broken):
            self._reading = None

    def call(self, keys: CallKeys, begin: Callable[[str, str | None, int], Told]) -> _Reading:
        """Read a call up to its arguments, then those."""
        token = yield
        if token[0] == "[":
            token = yield
        name = call_id = None
        while token[0] in "{,":
            key = yield from self._key((yield))
            token = yield
            if key in keys.arguments:
                named = (
                    isinstance(name, str) and name.strip() and (call_id is not None or not keys.ids)
                )
                if token[0] == "{" and named:
                    yield from self._arguments(begin(str(name), call_id, self._behind))
                return
            if key == keys.inner and token[0] == "{":
                continue
            value = yield from _whole(token)
            if key in keys.names and name is None:
                name = read_json(value)
            elif key in keys.ids and call_id is None:
                call_id = str(read_json(value))
            token = yield

    def arguments(self, told: Told) -> _Reading:
        """Read a call's arguments."""
        if (yield)[0] == "{":
            yield from self._arguments(told)

    def _arguments(self, told: Told) -> _Reading:
        """Tell what stands behind the first bracket, but for the last."""
        self._told = told
        yield from self._pairs(told.front, told.schema_of)

    def _pairs(
        self, front: Callable[[str], str | None], schema_of: Callable[[str], Any]
    ) -> _Reading:
        """Tell the pairs of an object, read up to and over its last bracket."""
        token = yield
        while token[0] != "}":
            key = yield from self._key(token)
            value = yield
            before = front(key)
            if before is None:
                yield from _whole(value)
            else:
                self._front += before
                yield from self._value(value, schema_of(key))
            token = yield
            if token[0] == ",":
                token = yield
                if token[0] == "}":
                    raise Broken
            elif token[0] != "}":
                raise Broken

    def _value(self, token: Token, schema: Any) -> _Reading:
        kind = token[0]
        allowed = schema_types(schema)
        if kind == '"' and (not allowed or "string" in allowed):
            self._say('"')
            while (token := (yield))[0] == "text":
                self._say(write_json(read_json(f'"{token[1]}"'))[1:-1])
            self._say('"')
        elif kind == "{" and allowed != {"string"}:
            pairs = _Pairs()
            known = stated(schema, "properties")
            yield from self._pairs(pairs.front, known.get)
            self._say("}" if pairs.keys else "{}")
        elif kind == "[" and allowed != {"string"}:
            yield from self._items(stated(schema, "items"))
        else:
            whole = yield from _whole(token)
            self._say(write_json(fitting_value(read_json(whole), schema)))

    def _items(self, schema: Any) -> _Reading:
        """Tell the items of a list, read up to and over its last bracket."""
        self._front += "["
        token = yield
        if token[0] == "]":
            self._say("]")
            return
        while True:
            yield from self._value(token, schema)
            token = yield
            if token[0] == "]":
                self._say("]")
                return
            if token[0] != ",":
                raise Broken
            self._front += ", "
            token = yield

    def _key(self, token: Token) -> _Reading:
        """Return the key that a token begins, read up to and over the colon."""
        if token[0] != '"':
            raise Broken
        key = read_json((yield from _whole(token)))
        if (yield)[0] != ":":
            raise Broken
        return key

    def _say(self, text: str) -> None:
        if self._told is not None:
            self._told.say(self._front + text, self._behind)
        self._front = ""

    @property
    def _behind(self) -> int:
        """How many of the characters that were fed come behind the last token."""
        return self._num_fed - self._tokens.at


class _Pairs:
    """The keys of an object inside of arguments, and what stands in front of each value."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def front(self, key: str) -> str | None:
        """Return what stands in front of a key's value; None where it came before, and counts as it
        did.
        """
        if key in self.keys:
            return None
        front = f"{', ' if self.keys else '{'}{write_json(key)}: "
        self.keys.add(key)
        return front


def _whole(token: Token) -> _Reading:
    """Return the text of the value that a token begins."""
    if token[0] in ":,}]":
        raise Broken
    parts = []
    depth = 0
    while True:
        kind, written = token
        parts.append(f" {written}" if kind == "word" else written)
        depth += (kind in '{["') - (kind in "}]" or kind == "end")
        if not depth:
            return "".join(parts)
        token = yield

"""The text of one output as a format reads it: primitives that wait for more text where the next piece may matter.

A format is a generator that asks with `yield from`. Whether text comes whole or in pieces, each primitive reads the
same and holds back nothing but what may become a marker, so a format cannot tell the difference, and neither can
a client. Every character is read once.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from core.parsing.brackets import Brackets
from core.parsing.events import Call, Event, Ranges, Reasoning, Text
from core.parsing.markers import markers

Waits = Generator[None, None, Any]
"""A primitive under way: it yields when it needs more text."""
_NO_SPACE: Final = re.compile(r"\S")


class Broken(Exception):
    """What was read is not what the format says."""


class Scan:
    """One stage's text and what was found in it. Made by `core.parsing.output`."""

    def __init__(self, by_id: frozenset[str] = frozenset()) -> None:
        """`by_id`: markers that are special tokens here; spelled out in other tokens they are ordinary text."""
        self._by_id = by_id
        self._text = ""
        self._at = 0
        """What stands before this was read; behind it is little, since primitives read all they can."""
        self._specials: list[tuple[int, int]] = []
        """Special tokens spelled in the text."""
        self._closed = False
        self._raw: list[str] = []
        """What was read since the attempt began, the marker in front of it included."""
        self._events: list[Event] = []
        self._calls: list[Call] | None = None
        """Of the attempt under way; None outside of one."""
        self._fresh = True
        """Nothing but white space came since the start, or since a call or reasoning: such space is layout."""
        self._space: tuple[str, type[Text] | type[Reasoning]] = ("", Text)
        """White space that is shown if text of its kind follows it, or if the output ends with it."""

    # --- for the runtime ---------------------------------------------------------------------------------

    def feed(self, text: str, specials: Ranges = ()) -> None:
        """Take more text, and where in it special tokens are spelled."""
        kept, self._text = self._specials_in(self._at, len(self._text)), self._text[self._at :]
        self._at = 0
        have = len(self._text)
        self._specials = [*kept, *((start + have, end + have) for start, end in specials)]
        self._text += text

    def close(self) -> None:
        """No more text comes."""
        self._closed = True

    def events(self) -> list[Event]:
        """Return what was found since the last time."""
        found, self._events = self._events, []
        return found

    def pass_on(self) -> None:
        """The format reads no more: show as content all there is."""
        self._settle("".join(self._raw))
        self._raw = []
        at = self._at
        specials = self._specials_in(at, len(self._text))
        self._say(self._read(len(self._text)), specials, Text, at)
        self._raw = []

    def end(self) -> None:
        """The output is complete: show what is left."""
        self.pass_on()
        space, kind = self._space
        if space and not self._fresh:
            self._events.append(kind(space))
        self._space = ("", Text)

    # --- for formats -------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Say whether all text is read and none comes."""
        return self._closed and self._at == len(self._text)

    def text(self, *ends: str) -> Waits:
        """Show text as content up to the first of some markers; return the marker, or None at the end of the output.

        The marker belongs to the attempt that follows: if that breaks, it is text as well.
        """
        return (yield from self._show(ends, Text))

    def reasoning(self, *ends: str) -> Waits:
        """Show text as reasoning up to the first of some markers; return the marker, or None at the end."""
        found = yield from self._show(ends, Reasoning)
        self._raw = []
        self._layout()
        return found

    def take(self, *ends: str) -> Waits:
        """Return the text up to the first of some markers, and the marker. Raises `Broken` if none comes."""
        parts: list[str] = []
        while True:
            piece, marker = self._next(ends)
            parts.append(piece)
            if marker is not None:
                return "".join(parts), marker
            if self._closed:
                raise Broken
            yield

    def before(self, *ends: str) -> Waits:
        """Return the text in front of the first of some markers, which stays unread. Raises `Broken` if none comes."""
        text, marker = yield from self.take(*ends)
        self._at -= len(marker)
        self._raw.pop()
        return text

    def skip(self, *ends: str) -> Waits:
        """Leave out everything up to the first of some markers; return the marker, or None at the end."""
        while True:
            _, marker = self._next(ends)
            self._raw = []
            if marker is not None or self._closed:
                self._layout()
                return marker
            yield

    def maybe(self, *texts: str) -> Waits:
        """Skip white space and one of some texts if it follows; return which did, or None."""
        yield from self._skip_space()
        longest_first = sorted(texts, key=len, reverse=True)
        while True:
            at, left = self._at, len(self._text) - self._at
            found = next((t for t in longest_first if self._text.startswith(t, at) and self._is_marker(t, at)), None)
            may_grow = any(len(t) > left and t.startswith(self._text[at:]) for t in texts)
            if may_grow and not self._closed:
                yield
                continue
            if found is not None:
                self._read(at + len(found))
            return found

    def expect(self, *texts: str) -> Waits:
        """Skip white space and one of some texts; return which it was. Raises `Broken` if none follows."""
        found = yield from self.maybe(*texts)
        if found is None:
            raise Broken
        return found

    def json(self) -> Waits:
        """Return the object or list that follows, read as JSON. Raises `Broken` if it is none."""
        return read_json((yield from self.bracketed(json=True)))

    def object(self) -> Waits:
        """Return the object that follows, read as JSON. Raises `Broken` if it is none."""
        value = yield from self.json()
        if not isinstance(value, dict):
            raise Broken
        return value

    def bracketed(self, *, json: bool = False) -> Waits:
        """Return the text from an opening bracket to the one that closes it, brackets inside strings left out."""
        yield from self._skip_space()
        brackets, parts = Brackets(json=json), []
        while True:
            at = self._at
            try:
                end = brackets.end(self._text, at)
            except ValueError as error:
                self._read(int(error.args[0]))
                raise Broken from error
            special = self._specials_in(at, len(self._text) if end is None else end)
            if special:
                self._read(special[0][0])  # a special token is in no string
                raise Broken
            parts.append(self._read(len(self._text) if end is None else end))
            if end is not None:
                return "".join(parts)
            if self._closed:
                raise Broken
            yield

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Read something that may be broken: calls made inside count if all of it is whole, else it is all text."""
        self._calls = []
        try:
            yield
        except Broken:
            self._settle("".join(self._raw))
        else:
            if self._calls:
                self._events += self._calls
                self._layout()
        finally:
            self._raw, self._calls = [], None

    def call(self, name: Any, arguments: Any, call_id: str | None = None) -> None:
        """Note one tool call; `arguments` is an object, or its JSON text. Raises `Broken` for what is none."""
        if not isinstance(name, str) or not name.strip():
            raise Broken
        if isinstance(arguments, str):
            arguments = read_json(arguments or "{}")
        if not isinstance(arguments, dict):
            raise Broken
        found = Call(name.strip(), write_json(arguments), call_id)
        if self._calls is not None:
            self._calls.append(found)
        else:
            self._raw = []
            self._events.append(found)
            self._layout()

    # --- inside ------------------------------------------------------------------------------------------

    def _show(self, ends: Sequence[str], kind: type[Text] | type[Reasoning]) -> Waits:
        while True:
            at = self._at
            piece, marker = self._next(ends)
            self._say(piece, self._specials_in(at, at + len(piece)), kind, at)
            self._raw = [] if marker is None else [marker]
            if marker is not None or self._closed:
                return marker
            yield

    def _next(self, ends: Sequence[str]) -> tuple[str, str | None]:
        """Read up to and over the first of some markers, or all that cannot be part of one."""
        if not ends:
            return self._read(len(self._text)), None
        finder = markers(*ends)
        held = len(self._text) if self._closed else finder.held(self._text, self._at)
        for found in finder.pattern.finditer(self._text, self._at):
            if found.start() >= held:
                break  # a longer or an earlier one may come of what is held
            if self._is_marker(found[0], found.start()):
                return self._read(found.start()), self._read(found.end())
        return self._read(held), None

    def _is_marker(self, marker: str, at: int) -> bool:
        return marker not in self._by_id or bool(self._specials_in(at, at + 1))

    def _specials_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the special tokens that begin in a stretch of the text."""
        specials = self._specials
        return specials[bisect_left(specials, (start,)) : bisect_left(specials, (end,))] if specials else []

    def _skip_space(self) -> Waits:
        while True:
            found = _NO_SPACE.search(self._text, self._at)
            self._read(len(self._text) if found is None else found.start())
            if found is not None or self._closed:
                return
            yield

    def _read(self, end: int) -> str:
        text, self._at = self._text[self._at : end], end
        if text:
            self._raw.append(text)
        return text

    def _say(
        self, text: str, specials: Sequence[tuple[int, int]], kind: type[Text] | type[Reasoning], at: int = 0
    ) -> None:
        """Show text that was read at `at`, without white space that turns out to be layout."""
        if not text:
            return
        if self._space[1] is not kind:
            self._space = ("", kind)
        skipped = len(text) - len(text.lstrip()) if self._fresh else 0
        end = max(skipped, len(text.rstrip()))
        if end == skipped:  # white space only
            self._space = (self._space[0] + text[skipped:], kind)
            return
        space, shift = self._space[0], len(self._space[0]) - skipped - at
        ranges = tuple((start + shift, stop + shift) for start, stop in specials)
        self._events.append(kind(space + text[skipped:end], ranges))
        self._fresh, self._space = False, (text[end:], kind)

    def _settle(self, raw: str) -> None:
        """Show as content what was read for a call and is none."""
        self._say(raw, (), Text)

    def _layout(self) -> None:
        """White space behind what ends here is layout, and so is that before it unless more text comes."""
        self._fresh = True


def read_json(text: str) -> Any:
    """Return the value of a JSON text, control characters in strings allowed. Raises `Broken` for what is none."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Broken from error


def write_json(value: Any) -> str:
    """Return a value as JSON text. Raises `Broken` for what JSON has not."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Broken from error


def _refuse(name: str) -> None:
    raise ValueError(name)

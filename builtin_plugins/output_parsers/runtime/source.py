"""The text of one output as it is read: in pieces that come, up to markers, nothing held back but
what may become one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Sequence
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.events import Ranges
from builtin_plugins.output_parsers.runtime.json_text import Broken
from builtin_plugins.output_parsers.runtime.markers import markers

Waits = Generator[None, None, Any]
"""A primitive under way: it yields when it needs more text."""
MAX_NAME: Final = 256
"""Characters of a tool's name; longer is no name anybody gave."""
_NO_SPACE: Final = re.compile(r"\S")
_NAME: Final = re.compile(r"[\w.:/\-]*")


class Source:
    """Text that comes in pieces, with the special tokens that are spelled in it, and how far it is
    read.
    """

    def __init__(self, by_id: frozenset[str] = frozenset()) -> None:
        """`by_id`: markers that are special tokens here; spelled out in other tokens they are
        ordinary text.
        """
        self._by_id = by_id
        self._tokens: dict[str, tuple[int, ...]] = {}
        """Where in markers such tokens are spelled."""
        self._text = ""
        self._at = 0
        """What stands before this was read; behind it is little, since primitives read all they
        can.
        """
        self._base = 0
        """As many characters of the output stand in front of the text that is kept."""
        self._specials: list[tuple[int, int]] = []
        """Special tokens spelled in the text."""
        self._closed = False
        self._num_read = 0
        self._raw: list[tuple[str, Ranges]] = []
        """What was read since the attempt began, the marker in front of it included; special tokens
        in each piece.
        """

    def feed(self, text: str, specials: Ranges = ()) -> None:
        """Take more text, and where in it special tokens are spelled."""
        at = self._at
        kept = [(start - at, end - at) for start, end in self._specials_in(at, len(self._text))]
        self._text = self._text[at:]
        self._at = 0
        self._base = self._base + at
        have = len(self._text)
        self._specials = [*kept, *((start + have, end + have) for start, end in specials)]
        self._text += text

    def close(self) -> None:
        """No more text comes."""
        self._closed = True

    @property
    def ended(self) -> bool:
        """Say whether all text is read and none comes."""
        return self._closed and self._at == len(self._text)

    @property
    def place(self) -> int:
        """How many characters of the output are read."""
        return self._base + self._at

    def word(self) -> Waits:
        """Return the name that follows: letters, digits and `_.:/-`.

        Raises `Broken` if there is none.
        """
        yield from self._skip_space()
        name = ""
        while True:
            found = _NAME.match(self._text, self._at, self._at + MAX_NAME - len(name))
            name += self._read(self._at if found is None else found.end())
            if len(name) == MAX_NAME:
                raise Broken
            if self._at < len(self._text) or self._closed:
                if not name:
                    raise Broken
                return name
            yield

    def unread(self, marker: str) -> None:
        """Let the marker that was read last be the next to be read."""
        self._at -= len(marker)
        if self._raw:
            self._raw.pop()

    def _follows(self, texts: Sequence[str]) -> Waits:
        yield from self._skip_space()
        longest_first = sorted(texts, key=len, reverse=True)
        while True:
            at = self._at
            left = len(self._text) - self._at
            found = next(
                (
                    t
                    for t in longest_first
                    if self._text.startswith(t, at) and self._is_marker(t, at)
                ),
                None,
            )
            may_grow = any(len(t) > left and t.startswith(self._text[at:]) for t in texts)
            if may_grow and not self._closed:
                yield
                continue
            if found is not None:
                self._read(at + len(found))
            return found

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
        """Say whether the special tokens in a marker were written as such, and it is no part of
        another.
        """
        if self._specials:
            before = bisect_left(self._specials, (at + 1,))
            start, end = self._specials[before - 1] if before else (at, at)
            if start < at < end or at + len(marker) < end:
                return False
        if marker not in self._tokens:
            self._tokens[marker] = tuple(
                marker.index(token) for token in self._by_id if token in marker
            )
        return all(
            self._specials_in(at + offset, at + offset + 1) for offset in self._tokens[marker]
        )

    def _specials_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the special tokens that begin in a stretch of the text."""
        specials = self._specials
        return (
            specials[bisect_left(specials, (start,)) : bisect_left(specials, (end,))]
            if specials
            else []
        )

    def _skip_space(self) -> Waits:
        while True:
            found = _NO_SPACE.search(self._text, self._at)
            self._read(len(self._text) if found is None else found.start())
            if found is not None or self._closed:
                return
            yield

    def _read(self, end: int) -> str:
        at = self._at
        self._at = end
        text = self._text[at:end]
        self._num_read += len(text)
        if text:
            self._raw.append((text, tuple((a - at, b - at) for a, b in self._specials_in(at, end))))
        return text

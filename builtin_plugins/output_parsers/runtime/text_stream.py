"""Model text that arrives in chunks, read up to markers. Holds back marker prefixes only."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from builtin_plugins.output_parsers.runtime.events import Ranges
from builtin_plugins.output_parsers.runtime.json_text import Broken

Reading = Generator[None, None, Any]
"""A format, or one of its primitives, in progress. It yields when it needs more text."""
MAX_NAME: Final = 256
"""Maximum characters of a tool's name."""
_NO_SPACE: Final = re.compile(r"\S")
_NAME: Final = re.compile(r"[\w.:/\-]*")


@dataclass(frozen=True, slots=True)
class Markers:
    """Searches several texts at once: the earliest match wins, then the longest."""

    pattern: re.Pattern[str]
    prefixes: dict[str, tuple[str, ...]]
    """Proper prefixes of the markers by last character, longest first."""

    def held(self, text: str, start: int) -> int:
        """Return where a trailing marker prefix of `text[start:]` starts; `len(text)` if none."""
        end = len(text)
        for prefix in self.prefixes.get(text[-1:], ()):
            if len(prefix) <= end - start and text.endswith(prefix):
                return end - len(prefix)
        return end


@lru_cache(maxsize=1024)
def markers(*texts: str) -> Markers:
    """Return the finder of some texts, none of them empty."""
    prefixes: dict[str, list[str]] = defaultdict(list)
    proper = {text[:i] for text in texts for i in range(1, len(text))}
    for prefix in sorted(proper, key=len, reverse=True):
        prefixes[prefix[-1]].append(prefix)
    longest_first = sorted(texts, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return Markers(pattern, {last: tuple(found) for last, found in prefixes.items()})


class TextStream:
    """Chunked text with its special tokens, and the read position in it."""

    def __init__(self, by_id: frozenset[str] = frozenset()) -> None:
        """`by_id`: markers that are special tokens here; spelled in other tokens they are text."""
        self._by_id = by_id
        self._tokens: dict[str, tuple[int, ...]] = {}
        """Offsets of special tokens within each marker."""
        self._text = ""
        self._at = 0
        """Read position in `_text`; the unread rest is short."""
        self._base = 0
        """Number of characters of the output before `_text`."""
        self._specials: list[tuple[int, int]] = []
        """Ranges of the special tokens in `_text`."""
        self._closed = False
        self._num_read = 0
        self._consumed: list[tuple[str, Ranges]] = []
        """Pieces read since the attempt began, its marker first, with their special tokens."""

    def feed(self, text: str, specials: Ranges = ()) -> None:
        """Append text, with the ranges of the special tokens in it."""
        at = self._at
        left = [(start - at, end - at) for start, end in self._specials_in(at, len(self._text))]
        self._text = self._text[at:]
        self._at = 0
        self._base += at
        have = len(self._text)
        self._specials = [*left, *((start + have, end + have) for start, end in specials)]
        self._text += text

    def close(self) -> None:
        """Mark the output as complete."""
        self._closed = True

    @property
    def ended(self) -> bool:
        """True when the output is complete and all of it is read."""
        return self._closed and self._at == len(self._text)

    @property
    def position(self) -> int:
        """Number of characters of the output that are read."""
        return self._base + self._at

    def read_name(self) -> Reading:
        """Return the next name: letters, digits and `_.:/-`. Raises `Broken` if there is none."""
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
        """Put back the marker that was read last."""
        self._at -= len(marker)
        if self._consumed:
            self._consumed.pop()

    def _follows(self, texts: Sequence[str]) -> Reading:
        """Skip white space and one of some texts; return that text, or None if none follows."""
        yield from self._skip_space()
        longest_first = sorted(texts, key=len, reverse=True)
        while True:
            at = self._at
            left = len(self._text) - at
            found = None
            for text in longest_first:
                if self._text.startswith(text, at) and self._is_marker(text, at):
                    found = text
                    break
            may_grow = any(len(text) > left and text.startswith(self._text[at:]) for text in texts)
            if may_grow and not self._closed:
                yield
                continue
            if found is not None:
                self._read(at + len(found))
            return found

    def _next(self, ends: Sequence[str]) -> tuple[str, str | None]:
        """Read through the first of some markers, or all text that cannot be part of one."""
        if not ends:
            return self._read(len(self._text)), None
        finder = markers(*ends)
        held = len(self._text) if self._closed else finder.held(self._text, self._at)
        for found in finder.pattern.finditer(self._text, self._at):
            if found.start() >= held:
                break  # the held text may become a longer or an earlier marker
            if self._is_marker(found[0], found.start()):
                return self._read(found.start()), self._read(found.end())
        return self._read(held), None

    def _is_marker(self, marker: str, at: int) -> bool:
        """Return whether a marker's special tokens are real and it is not inside another token."""
        if self._specials:
            before = bisect_left(self._specials, (at + 1,))
            start, end = self._specials[before - 1] if before else (at, at)
            if start < at < end or at + len(marker) < end:
                return False
        if marker not in self._tokens:
            offsets = tuple(marker.index(token) for token in self._by_id if token in marker)
            self._tokens[marker] = offsets
        return all(
            self._specials_in(at + offset, at + offset + 1) for offset in self._tokens[marker]
        )

    def _specials_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the special tokens that start in `_text[start:end]`."""
        specials = self._specials
        if not specials:
            return []
        return specials[bisect_left(specials, (start,)) : bisect_left(specials, (end,))]

    def _skip_space(self) -> Reading:
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
            specials = tuple((a - at, b - at) for a, b in self._specials_in(at, end))
            self._consumed.append((text, specials))
        return text

"""Finds where a JSON value, or a Python list of calls, ends in text that arrives in chunks."""

from __future__ import annotations

import re
from typing import Final

MAX_DEPTH: Final = 200
"""Maximum nesting of brackets; deeper text is not a tool call."""
_OPEN: Final = {"{": "}", "[": "]", "(": ")"}
_JSON: Final = re.compile(r"[^\s\w:,.+\-]")
_PYTHON: Final = re.compile(r"[\[\](){}\"'<>|`\\]")
_STRING_END: Final = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


class Brackets:
    """Scans from an opening bracket to its closing one. Skips strings; validates little else."""

    __slots__ = ("_escaped", "_interesting", "_open", "_quote")

    def __init__(self, *, json: bool) -> None:
        """`json`: accept JSON only, so no round brackets, no single quotes, no other symbols."""
        self._interesting = _JSON if json else _PYTHON
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def end(self, text: str, at: int, stop: int) -> int | None:
        """Return the index after the value's last character; None if `text[at:stop]` is not enough.

        Raises ValueError with the index of a character that is invalid there.
        """
        while at < stop:
            if self._quote:
                at = self._string(text, at, stop)
                continue
            found = self._interesting.search(text, at, stop)
            if found is None:
                if not self._open and text[at:stop].strip():
                    raise ValueError(at)
                return None
            at = found.start()
            self._take(text[at], at)
            at += 1
            if not self._open and not self._quote:
                return at
        return None

    @property
    def missing(self) -> str:
        """The brackets that would close the value; empty inside a string."""
        return "" if self._quote else "".join(reversed(self._open))

    def _string(self, text: str, at: int, stop: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _STRING_END[self._quote].search(text, at, stop)
        if found is None:
            return stop
        if text[found.start()] == "\\":
            self._escaped = True
        else:
            self._quote = ""
        return found.end()

    def _take(self, char: str, at: int) -> None:
        is_python = self._interesting is _PYTHON
        if char in _OPEN and (char != "(" or is_python):
            self._open.append(_OPEN[char])
            if len(self._open) <= MAX_DEPTH:
                return
        elif self._open and char == self._open[-1]:
            self._open.pop()
            return
        elif self._open and (char == '"' or (char == "'" and is_python)):
            self._quote = char
            return
        raise ValueError(at)

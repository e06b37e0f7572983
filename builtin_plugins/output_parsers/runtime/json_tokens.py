"""JSON that comes in pieces, as tokens: each is known for certain, and the same whatever the
pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from builtin_plugins.output_parsers.runtime.json_text import Broken

Token = tuple[str, str]
"""(kind, text as it is written). Kinds: a mark of JSON is its own; `word`, a number or the like;
`"` begins a string,
`text` is some of it, `end` ends it."""
MAX_WORD: Final = 4300
"""Characters of a number or the like; Python reads no longer integer."""
_TOKEN: Final = re.compile(r'\s+|(?P<mark>[{}\[\]:,"])|(?P<word>[^\s{}\[\]:,"]+)')
_HEX: Final = "[0-9a-fA-F]"
_CERTAIN: Final = re.compile(
    rf"""(?:[^"\\]++
    |\\[^u]
    |\\u(?={_HEX}{{0,3}}[^0-9a-fA-F])
    |\\u(?![dD][89abAB]){_HEX}{{4}}
    |\\u[dD][89abAB]{_HEX}{{2}}
        (?:\\u[dD][c-fC-F]{_HEX}{{2}}|(?=[^\\]|\\[^u]|\\u{_HEX}{{0,3}}[^0-9a-fA-F]|\\u{_HEX}{{4}}))
    )*+""",
    re.DOTALL | re.VERBOSE,
)
"""The text of a string as far as it means the same whatever follows: no half of an escape, none of
two that are one sign.
"""


class JsonTokens:
    """Takes JSON text, yields its tokens. Checks nothing: tokens may come in any order."""

    def __init__(self) -> None:
        self.at = 0
        """How many characters stand in front of the end of the last token."""
        self._base = 0
        """As many stand in front of what is held."""
        self._held = ""
        self._in_string = False

    def feed(self, text: str) -> Iterator[Token]:
        """Yield what is certain now. Raises `Broken` for a word that is too long for any."""
        text = self._held + text
        at = 0
        while at < len(text):
            kind, end = self._next(text, at)
            if end == at:  # it may go on
                break
            if kind:
                self.at = self._base + end
                yield kind, text[at:end]
            at = end
        self._base = self._base + at
        self._held = text[at:]

    def _next(self, text: str, at: int) -> tuple[str, int]:
        """Return the kind of the token that follows, "" for white space, and where it ends."""
        if self._in_string:
            self._in_string = text[at] != '"'
            if not self._in_string:
                return "end", at + 1
            certain = _CERTAIN.match(text, at)
            return "text", at if certain is None else certain.end()
        found = _TOKEN.match(text, at)
        if found is not None and found["word"] and len(found["word"]) > MAX_WORD:
            raise Broken
        if found is None or (found["word"] and found.end() == len(text)):
            return "", at
        self._in_string = found["mark"] == '"'
        return found["mark"] or ("word" if found["word"] else ""), found.end()

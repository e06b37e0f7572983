"""JSON as models write it: tolerant parsing and an incremental tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, Final, NoReturn

Token = tuple[str, str]
"""(kind, source text). Kinds: a punctuation mark is its own kind; `word` is a number or literal;
`"` starts a string, `text` is a piece of it, `end` ends it."""
MAX_WORD: Final = 4300
"""Maximum characters of a number or literal; Python parses no longer integer."""
_BACKSLASH: Final = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
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
"""The part of a string that later text cannot change: no partial escape or surrogate."""


class Broken(Exception):
    """The text does not follow the format."""


def read_json(text: str, *, exact: bool = False) -> Any:
    """Return the value of a JSON text. Raises `Broken` for invalid JSON.

    Tolerates what models write: control characters in strings, and backslashes that escape nothing
    (patterns, paths). Of duplicate keys in an object the first counts. Numbers outside of JSON
    (`NaN`, `1e999`) become their text, or raise if `exact`.
    """
    try:
        return json.loads(
            text,
            strict=False,
            parse_constant=_refuse if exact else str,
            parse_float=_exact if exact else _finite,
            object_pairs_hook=_first_of_each,
        )
    except RecursionError as error:
        raise Broken from error
    except ValueError as error:
        escaped = _BACKSLASH.sub(lambda found: found[0] if found[1] else "\\\\", text)
        if escaped == text:
            raise Broken from error
        return read_json(escaped, exact=exact)


def write_json(value: Any) -> str:
    """Return a value as JSON text. Raises `Broken` if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Broken from error


class JsonTokens:
    """Splits JSON text into chunking-independent tokens. Does not check the grammar."""

    def __init__(self) -> None:
        self.at = 0
        """Number of characters up to the end of the last token."""
        self._base = 0
        """Number of characters before the pending text."""
        self._pending = ""
        self._in_string = False

    def feed(self, text: str) -> Iterator[Token]:
        """Yield the tokens that are certain now. Raises `Broken` for a word beyond `MAX_WORD`."""
        text = self._pending + text
        at = 0
        while at < len(text):
            kind, end = self._next(text, at)
            if end == at:  # the token may continue in the next chunk
                break
            if kind:
                self.at = self._base + end
                yield kind, text[at:end]
            at = end
        self._base += at
        self._pending = text[at:]

    def _next(self, text: str, at: int) -> tuple[str, int]:
        """Return the kind of the next token ("" for white space) and its end."""
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


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else found | dict(reversed(pairs))


def _finite(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _exact(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)

"""Reader of Python literals and of the Gemmas' values. Nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from builtin_plugins.output_parsers.api import Broken, read_json

WORDS: Final = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
MAX_DEPTH: Final = 100
_QUOTED: Final = r'"(?:[^"\\]++|\\.)*+"'
_BARE: Final = r"""|(?P<bare>[^\W\d][^,:{}\[\]"<>|]{0,200}+(?=[,}\]]))"""
"""Strings without quotes, up to the end of a value; the length bound keeps time linear."""
_REST: Final = r"""
    |(?P<number>[+-]?(?:\d[\d_]*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.]))
    |(?P<word>[^\W\d][\w.\-]*+)
    |(?P<mark>[\[\](){},:=])
    |(?P<other>\S)"""
PYTHON: Final = re.compile(
    r"""(?P<text>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')""" + _REST, re.DOTALL | re.VERBOSE
)
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<hex>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-7]{1,3})|(?P<one>.))",
    re.DOTALL,
)
_ARGUMENT: Final = re.compile(
    r"""\s*+(?P<name>\w++)\s*+=\s*+"""
    r"""(?:(?P<text>(?P<quote>["']).*?(?P=quote))|(?P<plain>[^"',()]++))"""
    r"""\s*+(?:,(?=\s*+\w++\s*+=)|\Z)""",
    re.DOTALL,
)
_ONE: Final = dict(zip("abfnrtv\\'\"\n", "\a\b\f\n\r\t\v\\'\"", strict=False)) | {"\n": ""}


class LiteralReader:
    """Parses one text, token by token."""

    def __init__(
        self,
        text: str,
        grammar: re.Pattern[str],
        string: Callable[[str], str],
        *,
        commas: bool = True,
    ) -> None:
        """`grammar` matches tokens; `string` converts a string token to its text.

        `commas`: commas between pairs are required; otherwise commas and values may be missing.
        """
        self._tokens = [(str(found.lastgroup), found[0]) for found in grammar.finditer(text)]
        self._tokens.append(("end", ""))
        self._at = 0
        self._string = string
        self._commas = commas
        self._depth = 0

    def pairs(self, sign: str, end: str) -> dict[str, Any]:
        """Return `name sign value, ...` after an opening bracket, reading through its end."""
        found: dict[str, Any] = {}
        while not self._take(end):
            kind, name = self._next()
            if kind not in ("word", "text") or not self._take(sign):
                raise Broken
            missing = not self._commas and self._tokens[self._at][1] in (",", end)
            found[self._string(name) if kind == "text" else name] = "" if missing else self.value()
            if not self._take(",") and self._commas and self._tokens[self._at][1] != end:
                raise Broken
        return found

    def value(self) -> Any:
        """Return the next value."""
        kind, text = self._next()
        match kind, text:
            case "text", _:
                return self._string(text)
            case "number", _:
                return _number(text)
            case "word", _ if text in WORDS:
                return WORDS[text]
            case "bare", _:
                return WORDS.get(text.strip(), text.strip())
            case "mark", "[" | "(" | "{":
                return self._nested(text)
        raise Broken

    def finish(self) -> None:
        """Raise `Broken` if text is left."""
        if self._tokens[self._at][0] != "end":
            raise Broken

    def _nested(self, bracket: str) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Broken
        closing = {"{": "}", "[": "]", "(": ")"}[bracket]
        value = (
            self.pairs(":", "}") if bracket == "{" and not self._is_set() else self._items(closing)
        )
        self._depth -= 1
        return value

    def _is_set(self) -> bool:
        """Return whether curly brackets hold a set: no `:` after the first item."""
        return self._tokens[self._at][1] != "}" and self._tokens[self._at + 1 : self._at + 2] != [
            ("mark", ":")
        ]

    def _items(self, end: str) -> list[Any]:
        found = []
        while not self._take(end):
            found.append(self.value())
            if not self._take(",") and self._tokens[self._at][1] != end:
                raise Broken
        return found

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _take(self, mark: str) -> bool:
        if self._tokens[self._at] != ("mark", mark):
            return False
        self._at += 1
        return True


def python_arguments(text: str) -> dict[str, Any]:
    """Return the keyword arguments of a Python call, brackets included.

    Beyond Python: keywords as names, JSON's literals, line breaks and unescaped quotes in strings.
    """
    try:
        literals = LiteralReader(text[1:], PYTHON, _python_text)
        found = literals.pairs("=", ")")
        literals.finish()
    except Broken:
        return _loosely_quoted(text[1:-1])
    return found


def _loosely_quoted(text: str) -> dict[str, Any]:
    """Return arguments with quotes in strings: a string ends before the next argument."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        argument = _ARGUMENT.match(text, at)
        if argument is None:
            raise Broken
        found[argument["name"]] = (
            _python_text(argument["text"]) if argument["text"] else _literal(argument["plain"])
        )
        at = argument.end()
    return found


def _literal(text: str) -> Any:
    literals = LiteralReader(text, PYTHON, _python_text)
    value = literals.value()
    literals.finish()
    return value


def _python_text(token: str) -> str:
    return _ESCAPE.sub(_unescaped, token[1:-1])


def gemma_arguments(text: str, quote: str) -> dict[str, Any]:
    """Return the arguments of `{name:value,...}` with strings between `quote` texts."""
    between = re.escape(quote)
    texts = rf"(?P<text>{between}(?:(?!{between}).)*+{between}|{_QUOTED}){_BARE}"
    grammar = re.compile(texts + _REST, re.DOTALL | re.VERBOSE)
    literals = LiteralReader(text, grammar, lambda token: _unquoted(token, quote), commas=False)
    value = literals.value()
    literals.finish()
    if not isinstance(value, dict):
        raise Broken
    return value


def _unquoted(token: str, quote: str) -> str:
    if token.startswith(quote):
        return token[len(quote) : -len(quote)]
    return str(read_json(token))


def _number(text: str) -> int | float:
    try:
        return float(text) if re.search(r"[.eE]", text) else int(text)
    except ValueError as error:  # more digits than Python parses
        raise Broken from error


def _unescaped(found: re.Match[str]) -> str:
    if found["hex"] or found["octal"]:
        code = int(found["hex"][1:], 16) if found["hex"] else int(found["octal"], 8)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise Broken
        return chr(code)
    return _ONE.get(found["one"], found[0])

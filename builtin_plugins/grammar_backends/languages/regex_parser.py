"""Reads ECMA-262 regexes (with the `u` flag), except for back-references and flags.

Escapes that ECMA-262 does not define, and syntax of other dialects, are errors: reading them as
letters would silently change the meaning.
"""

from __future__ import annotations

import re
from typing import Final

from builtin_plugins.grammar_backends.languages.code_points import (
    DIGIT,
    LINE_ENDS,
    SPACE,
    WORD,
    Ranges,
    complement,
    normalize,
    property_set,
    union,
)
from builtin_plugins.grammar_backends.languages.expressions import (
    EMPTY,
    Assertion,
    Chars,
    Expr,
    Look,
    Repeat,
    alt,
    seq,
)

_COUNTS: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")
_GROUP: Final = re.compile(r"\?(?:P?<[A-Za-z_$][\w$]*>|:|=|!|<=|<!)")
_PLAIN_GROUP: Final = re.compile(r"\((?!\?<?[=!])")
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_CONTROL: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SETS: Final[dict[str, Ranges]] = {
    "d": DIGIT,
    "D": complement(DIGIT),
    "w": WORD,
    "W": complement(WORD),
    "s": SPACE,
    "S": complement(SPACE),
}
_DOT: Final = complement(LINE_ENDS)
_MAX_COUNT: Final = 100_000


class RegexError(ValueError):
    """A regex is malformed or unsupported; the message says what and where."""


def parse(text: str) -> Expr:
    """Return the tree of a regex. Raises `RegexError`."""
    reader = _Reader(text)
    found = reader.alternatives()
    if reader.at < len(text):
        raise reader.error(f"an unmatched {text[reader.at]!r}")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def error(self, what: str) -> RegexError:
        return RegexError(f"has {what} at character {self.at}")

    def _peek(self) -> str:
        return self._text[self.at : self.at + 1]

    def alternatives(self) -> Expr:
        """Read up to the end or to the closing bracket of this group."""
        found = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            found.append(self._sequence())
        return alt(*found)

    def _sequence(self) -> Expr:
        parts = []
        while (character := self._peek()) and character not in "|)":
            is_group = _PLAIN_GROUP.match(self._text, self.at) is not None
            part = self._item(character)
            can_repeat = is_group or not isinstance(part, Assertion | Look)
            parts.append(self._repeated(part, can_repeat=can_repeat))
        return seq(*parts) if parts else EMPTY

    def _item(self, character: str) -> Expr:
        if character in "*+?":
            raise self.error(f"a {character!r} that repeats nothing")
        if character == "(":
            return self._group()
        if character == "[":
            return Chars(self._class())
        self.at += 1
        if character == "^":
            return Assertion("start")
        if character == "$":
            return Assertion("end")
        if character == ".":
            return Chars(_DOT)
        if character != "\\":
            return Chars(self._single(ord(character)))
        if self._peek() and self._peek() in "bB":
            self.at += 1
            return Assertion("word" if self._text[self.at - 1] == "b" else "no word")
        found = self._escape(in_class=False)
        return Chars(self._single(found) if isinstance(found, int) else found)

    def _single(self, code: int) -> Ranges:
        found = normalize(((code, code),))
        if not found:
            raise self.error("a lone surrogate")
        return found

    def _group(self) -> Expr:
        self.at += 1
        look: tuple[bool, bool] | None = None
        if self._peek() == "?":
            opened = _GROUP.match(self._text, self.at)
            if opened is None:
                raise self.error("an unsupported group (flags and conditions are not supported)")
            self.at = opened.end()
            look = {
                "?=": (False, False),
                "?!": (False, True),
                "?<=": (True, False),
                "?<!": (True, True),
            }.get(opened[0])
        inner = self.alternatives()
        if self._peek() != ")":
            raise self.error("an unclosed group")
        self.at += 1
        return inner if look is None else Look(inner, *look)

    def _repeated(self, part: Expr, *, can_repeat: bool) -> Expr:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        counts = _COUNTS.match(self._text, self.at)
        if simple is not None:
            low, high = simple
            self.at += 1
        elif counts is not None:
            low = int(counts[1])
            high = int(counts[3]) if counts[3] else None if counts[2] else low
            if max(low, high or 0) > _MAX_COUNT:
                raise self.error(f"a repetition of more than {_MAX_COUNT} times")
            if high is not None and high < low:
                raise self.error("a repetition with its bounds exchanged")
            self.at = counts.end()
        else:
            return part
        if not can_repeat:
            raise self.error("a repeated assertion")
        if self._peek() == "?":
            self.at += 1  # lazy: the same texts match
        elif self._peek() == "+":
            raise self.error("a possessive repetition")
        if self._peek() and (self._peek() in "*?" or _COUNTS.match(self._text, self.at)):
            raise self.error("a repetition of a repetition")
        return Repeat(part, low, high)

    def _escape(self, *, in_class: bool) -> int | Ranges:
        """Read what follows a backslash: a code point or a set."""
        character = self._peek()
        if not character:
            raise self.error("a backslash at the end")
        if (found := _SETS.get(character)) is not None:
            self.at += 1
            return found
        if character in "pP":
            return self._property(negated=character == "P")
        if character == "0" and self._text[self.at + 1 : self.at + 2].isdigit():
            raise self.error("an octal escape")
        if character in _CONTROL:
            self.at += 1
            return _CONTROL[character]
        if character == "b" and in_class:
            self.at += 1
            return 8
        if character == "c" and self._text[self.at + 1 : self.at + 2].isascii():
            letter = self._text[self.at + 1 : self.at + 2]
            if letter.isalpha():
                self.at += 2
                return ord(letter) % 32
        if (code := _HEX.match(self._text, self.at)) is not None:
            self.at = code.end()
            return self._code(int(code[1] or code[2] or code[3], 16))
        if character.isdigit() or character == "k":
            raise self.error(f"the back-reference \\{character}")
        if character.isalpha():
            raise self.error(f"the escape \\{character}, which ECMA-262 does not define")
        self.at += 1
        return ord(character)

    def _code(self, code: int) -> int:
        """Return a code point; a high surrogate joins the low one that follows."""
        if 0xD800 <= code < 0xDC00 and self._text[self.at : self.at + 2] == "\\u":
            low = _HEX.match(self._text, self.at + 1)
            if low is not None and low[2] and 0xDC00 <= int(low[2], 16) < 0xE000:
                self.at = low.end()
                return 0x10000 + ((code - 0xD800) << 10) + int(low[2], 16) - 0xDC00
        if code > 0x10FFFF:
            raise self.error("an escape beyond U+10FFFF")
        return code

    def _property(self, *, negated: bool) -> Ranges:
        end = self._text.find("}", self.at)
        if self._text[self.at + 1 : self.at + 2] != "{" or end < 0:
            raise self.error("a property escape without braces")
        name = self._text[self.at + 2 : end]
        found = property_set(name)
        if found is None:
            raise self.error(f"the unsupported property {name!r:.60}")
        self.at = end + 1
        return complement(found) if negated else found

    def _class(self) -> Ranges:
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        found: list[Ranges] = []
        while (character := self._peek()) != "]":
            if not character:
                raise self.error("an unclosed class")
            low = self._member(character)
            is_range = self._peek() == "-" and self._text[self.at + 1 : self.at + 2] not in (
                "]",
                "",
            )
            if not is_range:
                found.append(((low, low),) if isinstance(low, int) else low)
                continue
            self.at += 1
            high = self._member(self._peek())
            if not isinstance(low, int) or not isinstance(high, int):
                # As without the `u` flag: a set is no end of a range, the dash is itself.
                ends = [((e, e),) if isinstance(e, int) else e for e in (low, high)]
                found += [*ends, ((0x2D, 0x2D),)]
            elif high < low:
                raise self.error("a range with its ends exchanged")
            else:
                found.append(((low, high),))
        self.at += 1
        joined = union(*found) if found else ()
        return complement(joined) if negated else joined

    def _member(self, character: str) -> int | Ranges:
        rest = self._text[self.at : self.at + 2]
        if rest in ("[:", "[.", "[="):
            raise self.error("a POSIX class")
        if rest == "&&":
            raise self.error("an intersection of classes")
        self.at += 1
        return self._escape(in_class=True) if character == "\\" else ord(character)

"""Finds constraints that are known to take exponential work, in linear time and without a library.

Does not check well-formedness: text that it does not understand is left to the backends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from builtin_plugins.grammar_backends.api import Constraint

MAX_OPTIONAL: Final = 256
"""Maximum consecutive optional parts: each may follow each, which is quadratic."""
MAX_PARTS: Final = 100_000
"""Maximum parts of a pattern with its repeats expanded."""
MAX_SCHEMAS: Final = 10**9
"""Maximum schemas in a schema with its references expanded."""
_ENDLESS: Final = 1 << 30
_COUNTS: Final = re.compile(r"\{(\d{1,6})(,?)(\d{0,6})\}")
_GROUP: Final = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>|<?[=!])")
_RULE: Final = re.compile(r"^[ \t]*([A-Za-z_][\w.-]*)[ \t]*::=", re.MULTILINE)
_WORD: Final = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(slots=True)
class _Part:
    """Properties of a piece of a pattern."""

    may_be_empty: bool = False
    repeats: bool = False
    """It contains an unbounded repetition."""
    size: int = 1
    run: int = 0
    """Number of consecutive optional parts in it."""
    names: list[str] = field(default_factory=list)
    """Names of the grammar rules in it."""


def find_blowup(constraint: Constraint) -> str | None:
    """Return the part of a constraint that takes exponential work; None if none is known."""
    if constraint.kind == "regex":
        return _of_pattern(constraint.text)
    if constraint.kind == "grammar":
        return _of_grammar(constraint.text)
    if constraint.kind not in ("json", "structural_tag"):
        return None
    whole = json.loads(constraint.text)
    for key, text in _patterns(whole):
        if (found := _of_grammar(text) if key == "grammar" else _of_pattern(text)) is not None:
            return f"{found} in {key!r}"
    return _of_references(whole)


def remote_reference(text: str) -> str | None:
    """Return the first reference to another document in a schema or structural tag, if any."""
    open_ = [json.loads(text)]
    while open_:
        item = open_.pop()
        if isinstance(item, list):
            open_ += item
        elif isinstance(item, dict):
            if isinstance(ref := item.get("$ref"), str) and not ref.startswith("#"):
                return ref
            open_ += [
                inner
                for key, inner in item.items()
                if key not in ("const", "enum", "default", "examples")
            ]
    return None


def _patterns(whole: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of the regexes and grammars in a JSON value."""
    open_ = [whole]
    while open_:
        item = open_.pop()
        if isinstance(item, list):
            open_ += item
        elif isinstance(item, dict):
            open_ += item.values()
            yield from (
                (key, item[key]) for key in ("pattern", "grammar") if isinstance(item.get(key), str)
            )
            if isinstance(named := item.get("patternProperties"), dict):
                yield from (("patternProperties", name) for name in named)


def _of_pattern(text: str) -> str | None:
    try:
        _Reader(text, is_regex=True).alternatives()
    except _BlowupError as error:
        return str(error)
    return None


def _of_grammar(text: str) -> str | None:
    """Check each rule of an EBNF grammar, then direct recursion."""
    heads = [*_RULE.finditer(text)]
    rules: dict[str, list[_Part]] = {}
    try:
        ends = [*(following.start() for following in heads[1:]), len(text)][: len(heads)]
        for head, end in zip(heads, ends, strict=True):
            body = text[head.end() : end]
            rules.setdefault(head[1], []).extend(_Reader(body, is_regex=False).alternatives())
    except _BlowupError as error:
        return str(error)
    for name, alternatives in rules.items():
        for part in alternatives:
            if part.names.count(name) > 1 and part.size == len(part.names):
                return f"the rule {name!r:.40} that contains itself several times in a row"
    return None


def _of_references(whole: Any) -> str | None:
    """Count the schemas with references expanded; a recursive reference counts once."""
    sizes: dict[str, int] = {}
    inner: dict[str, list[str]] = {}
    todo = ["#"]
    while todo:
        ref = todo[-1]
        if ref not in inner:
            inner[ref] = [*_references(_target(whole, ref))]
            sizes[ref] = 1  # for recursive references to it
            todo += [other for other in dict.fromkeys(inner[ref]) if other not in inner]
            continue
        sizes[todo.pop()] = size = 1 + sum(sizes.get(other, 1) for other in inner[ref])
        if size > MAX_SCHEMAS:
            return "definitions that refer to others repeatedly"
    return None


def _references(part: Any) -> Iterator[str]:
    open_ = [part]
    while open_:
        item = open_.pop()
        if isinstance(item, list):
            open_ += item
        elif isinstance(item, dict):
            if isinstance(ref := item.get("$ref"), str) and ref.startswith("#/"):
                yield ref
            open_ += [inner for key, inner in item.items() if key not in ("$defs", "definitions")]


def _target(whole: Any, ref: str) -> Any:
    for name in ref.removeprefix("#").split("/")[1:]:
        whole = (
            whole.get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(whole, Mapping)
            else None
        )
    return whole


class _BlowupError(Exception):
    """Its message names the exponential part."""


class _Reader:
    """Parses a pattern. Requests with brackets nested deeper than 64 are rejected earlier."""

    def __init__(self, text: str, *, is_regex: bool) -> None:
        self._text = text
        self._at = 0
        self._is_regex = is_regex

    def alternatives(self) -> list[_Part]:
        """Read up to the end or to the closing bracket of this group."""
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _sequence(self) -> _Part:
        whole = _Part(may_be_empty=True, size=0)
        run = 0
        while (character := self._peek()) and character not in "|)":
            if not self._is_regex and character.isspace():
                self._at += 1
                continue
            part = self._item(character)
            if part is None:
                continue
            run = run + max(1, part.run) if part.may_be_empty else 0
            whole.run = max(whole.run, run)
            whole.may_be_empty &= part.may_be_empty
            whole.repeats |= part.repeats
            whole.size += part.size
            whole.names += part.names
            self._judge(whole)
        return whole

    def _judge(self, part: _Part) -> None:
        if part.run > MAX_OPTIONAL:
            raise _BlowupError(f"more than {MAX_OPTIONAL} optional parts in a row")
        if part.size > MAX_PARTS:
            raise _BlowupError(f"more than {MAX_PARTS} parts, with repeats expanded")

    def _item(self, character: str) -> _Part | None:
        """Read one part with its repetition; None for a comment."""
        if character == "(":
            part = self._group()
        elif character == "[":
            part = self._skip_to("]", 2 if self._text[self._at + 1 : self._at + 2] == "]" else 1)
        elif not self._is_regex and character in "\"'":
            part = self._skip_to(character, 1)
            part.may_be_empty = self._text[self._at - 2 : self._at] in ('""', "''")
            part.size = 0 if part.may_be_empty else 1
        elif not self._is_regex and character == "#":
            self._at = (self._text.find("\n", self._at) + 1) or len(self._text)
            return None
        elif not self._is_regex and (word := _WORD.match(self._text, self._at)) is not None:
            self._at = word.end()
            part = _Part(names=[word[0]])
        else:
            self._at += 2 if character == "\\" else 1
            part = _Part(
                may_be_empty=self._is_regex and character in "^$", size=int(character not in "^$")
            )
        return self._repeated(part)

    def _group(self) -> _Part:
        self._at += 1
        if self._is_regex and (opened := _GROUP.match(self._text, self._at)) is not None:
            self._at = opened.end()
        parts = self.alternatives()
        self._at += self._peek() == ")"
        return _Part(
            any(part.may_be_empty for part in parts),
            any(part.repeats for part in parts),
            sum(part.size for part in parts),
            max(part.run for part in parts),
            [name for part in parts for name in part.names],
        )

    def _skip_to(self, end: str, first: int) -> _Part:
        """Skip through an unescaped character."""
        self._at += first
        while (character := self._peek()) and character != end:
            self._at += 2 if character == "\\" else 1
        self._at += 1
        return _Part()

    def _repeated(self, part: _Part) -> _Part:
        while True:
            times = self._times()
            if times is None:
                return part
            low, high = times
            if high > 1 and part.may_be_empty and part.repeats:
                raise _BlowupError("a nested repetition that may be empty, as in (a*)*")
            if part.size > 1 and high < _ENDLESS:
                part.size *= max(1, high)
                part.run *= max(1, high)
            part.may_be_empty |= low == 0
            part.repeats |= high >= _ENDLESS
            self._judge(part)
            if self._is_regex and self._peek() in ("?", "+"):
                self._at += 1  # lazy and possessive repetition are the same to a grammar

    def _times(self) -> tuple[int, int] | None:
        """Return the (minimum, maximum) repetition that follows; None if there is none."""
        while not self._is_regex and self._peek() in (" ", "\t"):
            self._at += 1
        simple = {"*": (0, _ENDLESS), "+": (1, _ENDLESS), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
            return simple
        counts = _COUNTS.match(self._text, self._at)
        if counts is None:
            return None
        self._at = counts.end()
        low = int(counts[1])
        if not counts[2]:
            return low, low
        return low, int(counts[3]) if counts[3] else _ENDLESS

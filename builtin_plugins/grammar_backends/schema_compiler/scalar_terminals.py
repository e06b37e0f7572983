"""Terminals of JSON numbers, strings and property names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from builtin_plugins.grammar_backends.languages.decimals import notation
from builtin_plugins.grammar_backends.languages.dfa import Dfa, union
from builtin_plugins.grammar_backends.languages.expressions import ANY as ANY_CHARACTER
from builtin_plugins.grammar_backends.languages.expressions import ANYTHING as ANY_TEXT
from builtin_plugins.grammar_backends.languages.terminals import Terminals, quote
from builtin_plugins.grammar_backends.schema_compiler.facts import Numbers, Strings
from builtin_plugins.grammar_backends.schema_compiler.layout import Layout
from builtin_plugins.grammar_backends.schema_compiler.rules import Terminal

_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
_MAX_FACTORS: Final = 2
"""Maximum number of languages that the library intersects; more are one automaton."""


class ScalarTerminals:
    """Adds terminals to a grammar."""

    def __init__(self, terminals: Terminals, layout: Layout) -> None:
        self._terminals = terminals
        self._layout = layout

    def regex(self, text: str) -> Terminal:
        """Return the terminal of a regex in llguidance's own syntax."""
        return Terminal(self._terminals.name(self._terminals.regex(text)))

    def literal(self, text: str) -> Terminal:
        """Return the terminal of a fixed text."""
        return Terminal(self._terminals.name(self._terminals.literal(text)))

    def numbers(self, facts: Iterable[Numbers]) -> Terminal | None:
        """Return the terminal of numbers that fit one of the facts; None if there are none."""
        found: Dfa | None = None
        for part in facts:
            if part.dfa is None:
                return self.regex(_NUMBER)
            found = part.dfa if found is None else union(found, part.dfa)
        if found is None:
            return None
        written = notation(found)
        if written.is_empty():
            return None
        return Terminal(self._terminals.name(self._terminals.dfa(written, encoded=False)))

    def strings(self, strings: Strings) -> Iterator[Terminal]:
        """Yield the terminals of strings."""
        if strings.is_empty():
            return
        if strings.texts is not None:
            for text in sorted(filter(strings.fits, strings.texts)):
                yield self.literal(json.dumps(text, ensure_ascii=False))
            return
        mark = self._terminals.literal('"')
        yield Terminal(
            self._terminals.name(self._terminals.seq(mark, self._content(strings), mark))
        )

    def keys(self, strings: Strings) -> Iterator[Terminal]:
        """Yield the terminals of names with their colons."""
        colon = self._terminals.regex(f"{self._layout.around}:{self._layout.after}")
        mark = self._terminals.literal('"')
        if strings.texts is None:
            parts = [self._terminals.seq(mark, self._content(strings), mark)]
        else:
            parts = [
                self._terminals.literal(json.dumps(text, ensure_ascii=False))
                for text in sorted(filter(strings.fits, strings.texts))
            ]
        for part in parts:
            yield Terminal(self._terminals.name(self._terminals.seq(part, colon)))

    def key(self, name: str) -> Terminal:
        """Return the terminal of one name with its colon."""
        text = quote(json.dumps(name, ensure_ascii=False))
        return self.regex(f"{text}{self._layout.around}:{self._layout.after}")

    def _content(self, strings: Strings) -> int:
        """Return what is between the quotes of a JSON string."""
        terminals = self._terminals
        parts = []
        if len(strings.within) + len(strings.outside) > _MAX_FACTORS:
            parts.append(terminals.dfa(strings.dfa(), encoded=True))
            strings = replace(strings, within=(), outside=())
        for language in strings.within:
            parts.append(
                terminals.dfa(language.dfa, encoded=True)
                if language.expr is None
                else terminals.expr(language.expr, encoded=True)
            )
        if strings.low or strings.high is not None:
            character = terminals.expr(ANY_CHARACTER, encoded=True)
            parts.append(terminals.repeat(character, strings.low, strings.high))
        if not parts:
            parts.append(terminals.expr(ANY_TEXT, encoded=True))
        for language in strings.outside:
            if language.expr is None:
                parts.append(terminals.dfa(language.dfa.complement(), encoded=True))
            else:
                parts.append(terminals.invert(terminals.expr(language.expr, encoded=True)))
        if strings.others:
            others = [terminals.text(text) for text in sorted(strings.others)]
            parts.append(terminals.invert(terminals.alt(*others)))
        return terminals.both(*parts)

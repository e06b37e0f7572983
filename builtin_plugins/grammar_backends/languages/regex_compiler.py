"""Compiles regex trees to automata, with lookarounds and assertions anywhere.

A state of the automaton is what all partial matches need to know: each has a place in the
expression and the lookaheads it still has to satisfy, which are automata of their own. Lookbehinds
and `^` depend on the text so far only, so they are part of the state once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, cast

from builtin_plugins.grammar_backends.languages.code_points import ALL, WORD, Ranges
from builtin_plugins.grammar_backends.languages.dfa import (
    Dfa,
    TooComplexError,
    alphabet_of,
    explore,
)
from builtin_plugins.grammar_backends.languages.expressions import (
    ANYTHING,
    Alt,
    And,
    Assertion,
    Chars,
    Expr,
    Look,
    Not,
    Repeat,
    Seq,
    literal,
    seq,
)
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError, parse

_MAX_NODES: Final = 50_000
_MAX_PENDING: Final = 4_000
"""Maximum number of partial matches in one state."""
_WORK: Final = 1_000_000
"""Maximum number of partial matches visited in total, about two seconds."""


@lru_cache(maxsize=512)
def search_language(text: str) -> Dfa:
    """Return the texts in which a regex matches somewhere. Raises `RegexError`."""
    return _language(text, seq(ANYTHING, parse(text), ANYTHING))


@lru_cache(maxsize=512)
def match_language(text: str) -> Dfa:
    """Return the texts that a regex matches as a whole. Raises `RegexError`."""
    return _language(text, parse(text))


def _language(text: str, expr: Expr) -> Dfa:
    try:
        return compile_expr(expr)
    except TooComplexError as error:
        raise RegexError(str(error)) from error
    except RecursionError as error:
        raise RegexError("is nested too deeply") from error


@dataclass(frozen=True, slots=True)
class _Context:
    """The text before the start of an expression."""

    is_start: bool = True
    after_word: bool = False


def compile_expr(expr: Expr, context: _Context = _Context()) -> Dfa:
    """Return the texts that an expression matches as a whole."""
    return _Compiler(expr, context).run()


@dataclass(slots=True)
class _Program:
    """The expression as instructions; each place is (kind, value, next places)."""

    code: list[tuple[str, object, tuple[int, ...]]] = field(default_factory=list)

    def add(self, kind: str, value: object, *after: int) -> int:
        self.code.append((kind, value, after))
        if len(self.code) > _MAX_NODES:
            raise TooComplexError
        return len(self.code) - 1

    def build(self, expr: Expr, after: int) -> int:
        """Return the place where the expression starts; it continues at `after`."""
        if isinstance(expr, Chars):
            return self.add("chars", expr.ranges, after)
        if isinstance(expr, Seq):
            for part in reversed(expr.parts):
                after = self.build(part, after)
            return after
        if isinstance(expr, Alt):
            return self.add("split", None, *[self.build(part, after) for part in expr.parts])
        if isinstance(expr, Repeat):
            return self._repeat(expr, after)
        if isinstance(expr, Assertion):
            return self.add("assertion", expr.kind, after)
        if isinstance(expr, Look):
            return self.add("lookbehind" if expr.is_lookbehind else "ahead", expr, after)
        raise TypeError(expr)

    def _repeat(self, expr: Repeat, after: int) -> int:
        if expr.high is None:
            loop = self.add("split", None)
            inner = self.build(expr.part, loop)
            self.code[loop] = ("split", None, (inner, after))
            start = loop
        else:
            start = after
            for _ in range(expr.high - expr.low):
                start = self.add("split", None, self.build(expr.part, start), after)
        for _ in range(expr.low):
            start = self.build(expr.part, start)
        return start


_Pending = tuple[int, frozenset[tuple[int, int]]]
"""A place, and the (automaton, state) pairs of the lookaheads that the rest must satisfy."""
_History = tuple[bool, bool, tuple[int, ...]]
"""At the start; after a word character; states of the lookbehinds."""
_State = tuple[_History, frozenset[_Pending]]


class _Compiler:
    """Determinizes one expression."""

    def __init__(self, expr: Expr, context: _Context) -> None:
        self._context = context
        self._program = _Program()
        self._end = self._program.add("end", None)
        self._first = self._program.build(expr, self._end)
        self._loop = self._accepting_loop()
        self._sees_words = any(kind in ("assertion", "ahead") for kind, _, _ in self._program.code)
        sets: list[Ranges] = [ALL]
        self._lookbehinds: list[Dfa] = []
        self._lookbehind_of: dict[Expr, int] = {}
        _collect(expr, sets)
        for kind, value, _ in self._program.code:
            if kind == "lookbehind" and isinstance(value, Look):
                self._add_lookbehind(value)
        self._alphabet = alphabet_of(sets)
        self._codes = [ranges[0][0] for ranges in self._alphabet.ranges()]
        self._is_word = [any(lo <= code <= hi for lo, hi in WORD) for code in self._codes]
        self._plain_histories: list[_History] = [(False, word, ()) for word in self._is_word]
        self._classes: dict[Ranges, frozenset[int]] = {}
        self._ahead: list[Dfa] = []
        self._ahead_live: list[list[bool]] = []
        self._ahead_sure: list[list[bool]] = []
        self._ahead_of: dict[tuple[Expr, bool, bool], int] = {}
        self._columns: dict[int, list[int]] = {}
        self._work = 0

    def _accepting_loop(self) -> int | None:
        """Return the place of a trailing loop over any characters, if there is one."""
        code = self._program.code
        for place, (kind, _, after) in enumerate(code):
            if kind == "split" and len(after) == 2 and after[1] == self._end:
                inner = code[after[0]]
                if inner[0] == "chars" and inner[1] == ALL and inner[2] == (place,):
                    return place
        return None

    def run(self) -> Dfa:
        """Return the automaton."""
        history: _History = (
            self._context.is_start,
            self._context.after_word,
            tuple(0 for _ in self._lookbehinds),
        )
        start = (history, self._close([(self._first, frozenset())], history))
        return explore(self._alphabet, start, self._step, self._accepts)

    def _add_lookbehind(self, look: Look) -> None:
        if look.part in self._lookbehind_of:
            return
        if _looks_ahead(look.part) or self._context != _Context():
            raise RegexError("has a lookbehind together with other assertions")
        self._lookbehind_of[look.part] = len(self._lookbehinds)
        self._lookbehinds.append(compile_expr(seq(ANYTHING, look.part)))

    def _accepts(self, state: _State) -> bool:
        return any(
            place == self._end and all(self._ahead[index].accepts[at] for index, at in due)
            for place, due in state[1]
        )

    def _step(self, state: _State) -> list[_State]:
        (_, _, lookbehinds), pending = state
        moved = self._moves(pending)
        found: list[_State] = []
        known: dict[tuple[frozenset[_Pending], _History], _State] = {}
        for group, history in enumerate(self._histories(lookbehinds)):
            targets = moved.get(group, ())
            key = (frozenset(targets), history)
            after = known.get(key)
            if after is None:
                after = known[key] = (self._seen(history), self._close([*targets], history))
            found.append(after)
        return found

    def _moves(self, pending: frozenset[_Pending]) -> dict[int, list[_Pending]]:
        """Return where classes of characters lead; others lead nowhere."""
        moved: dict[int, list[_Pending]] = {}
        for place, due in pending:
            kind, value, after = self._program.code[place]
            if kind != "chars":
                continue
            for group in self._members(cast(Ranges, value)):
                moved_due = self._advance(due, group)
                if moved_due is not None:
                    moved.setdefault(group, []).append((after[0], moved_due))
        return moved

    def _histories(self, lookbehinds: tuple[int, ...]) -> list[_History]:
        """Return the history after a character of each class."""
        if not lookbehinds:
            return self._plain_histories
        return [
            (
                False,
                is_word,
                tuple(
                    dfa.steps[at][dfa.alphabet.class_of(code)]
                    for dfa, at in zip(self._lookbehinds, lookbehinds, strict=True)
                ),
            )
            for is_word, code in zip(self._is_word, self._codes, strict=True)
        ]

    def _seen(self, history: _History) -> _History:
        """Return the history, without what the expression never looks at."""
        return history if self._sees_words else (history[0], False, history[2])

    def _members(self, ranges: Ranges) -> frozenset[int]:
        if ranges not in self._classes:
            self._classes[ranges] = frozenset(self._alphabet.classes_of(ranges))
        return self._classes[ranges]

    def _advance(
        self, due: frozenset[tuple[int, int]], group: int
    ) -> frozenset[tuple[int, int]] | None:
        """Return the lookaheads after a character; None if one has failed."""
        if not due:
            return due
        moved = set()
        for index, at in due:
            after = self._ahead[index].steps[at][self._columns[index][group]]
            if not self._ahead_live[index][after]:
                return None
            if not self._ahead_sure[index][after]:
                moved.add((index, after))
        return frozenset(moved)

    def _close(self, pending: list[_Pending], history: _History) -> frozenset[_Pending]:
        """Follow all instructions that take no character."""
        seen: set[_Pending] = set()
        open_ = [*pending]
        while open_:
            item = open_.pop()
            if item in seen:
                continue
            seen.add(item)
            self._work += 1
            if len(seen) > _MAX_PENDING or self._work > _WORK:
                raise TooComplexError
            place, due = item
            if place == self._loop and not due:
                return frozenset(((self._loop, due), *self._after_loop()))
            kind, value, after = self._program.code[place]
            if kind == "split":
                open_ += [(target, due) for target in after]
            elif kind not in ("chars", "end"):
                more = self._assert(kind, value, history)
                if more is not None:
                    open_.append((after[0], due | more))
        free = {place for place, due in seen if not due}
        return frozenset(
            (place, due)
            for place, due in seen
            if self._program.code[place][0] in ("chars", "end") and (not due or place not in free)
        )

    def _after_loop(self) -> list[_Pending]:
        none: frozenset[tuple[int, int]] = frozenset()
        loop = -1 if self._loop is None else self._loop
        return [(target, none) for target in self._program.code[loop][2]]

    def _assert(
        self, kind: str, value: object, history: _History
    ) -> frozenset[tuple[int, int]] | None:
        """Return the lookaheads that an assertion adds; None if it fails here."""
        is_start, after_word, lookbehinds = history
        none: frozenset[tuple[int, int]] = frozenset()
        if kind == "lookbehind" and isinstance(value, Look):
            index = self._lookbehind_of[value.part]
            fits = self._lookbehinds[index].accepts[lookbehinds[index]] != value.is_negative
            return none if fits else None
        if value == "start":
            return none if is_start else None
        if value == "end":
            return self._require(_NO_MORE, negated=False, context=_Context())
        if value in ("word", "no word"):
            before_word = after_word != (value == "word")
            return self._require(_WORD_NEXT, negated=not before_word, context=_Context())
        if not isinstance(value, Look):
            raise TypeError(value)
        if _has_lookbehind(value.part) and not is_start:
            raise RegexError("has a lookbehind together with other assertions")
        context = _Context(is_start, after_word)
        return self._require(seq(value.part, ANYTHING), negated=value.is_negative, context=context)

    def _require(
        self, expr: Expr, *, negated: bool, context: _Context
    ) -> frozenset[tuple[int, int]] | None:
        key = (expr, context.is_start, context.after_word)
        number = self._ahead_of.get((Not(expr) if negated else expr, *key[1:]))
        if number is None:
            dfa = compile_expr(expr, context)
            dfa = dfa.complement() if negated else dfa
            number = len(self._ahead)
            self._ahead_of[(Not(expr) if negated else expr, *key[1:])] = number
            self._ahead.append(dfa)
            self._ahead_live.append(dfa.live())
            self._ahead_sure.append([not live for live in dfa.complement().live()])
            self._columns[number] = [dfa.alphabet.class_of(code) for code in self._codes]
        if not self._ahead_live[number][0]:
            return None
        return frozenset() if self._ahead_sure[number][0] else frozenset(((number, 0),))


_NO_MORE: Final = literal("")
_WORD_NEXT: Final = seq(Chars(WORD), ANYTHING)


def _collect(expr: Expr, sets: list[Ranges]) -> None:
    """Append all character sets of an expression, and those its assertions look at."""
    if isinstance(expr, Chars):
        sets.append(expr.ranges)
    elif isinstance(expr, Assertion):
        sets.append(WORD)
    elif isinstance(expr, Seq | Alt | And):
        for part in expr.parts:
            _collect(part, sets)
    elif isinstance(expr, Repeat | Look | Not):
        _collect(expr.part, sets)


def _looks_ahead(expr: Expr) -> bool:
    if isinstance(expr, Assertion):
        return expr.kind != "start"
    if isinstance(expr, Look):
        return True
    if isinstance(expr, Chars):
        return False
    parts = expr.parts if isinstance(expr, Seq | Alt | And) else (expr.part,)
    return any(map(_looks_ahead, parts))


def _has_lookbehind(expr: Expr) -> bool:
    if isinstance(expr, Look) and expr.is_lookbehind:
        return True
    if isinstance(expr, Chars | Assertion):
        return False
    parts = expr.parts if isinstance(expr, Seq | Alt | And) else (expr.part,)
    return any(map(_has_lookbehind, parts))

"""What is known of a value of one type: conjunctions of constraints.

A schema is, for each type, a list of such conjunctions, of which one must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from builtin_plugins.grammar_backends.languages.dfa import (
    ANY_TEXT,
    Dfa,
    difference,
    intersection,
)
from builtin_plugins.grammar_backends.languages.expressions import (
    And,
    Assertion,
    Chars,
    Expr,
    Look,
    Not,
    Repeat,
    plain,
)
from builtin_plugins.grammar_backends.languages.regex_compiler import (
    match_language,
    search_language,
)
from builtin_plugins.grammar_backends.languages.regex_parser import parse

Atom = tuple[int, bool]
"""A subschema by number, and whether it holds or not."""
Goal = frozenset[Atom]
"""A value's schemas: all of them must hold, or not hold."""
ANYTHING: Final[Goal] = frozenset()
NEVER: Final[Atom] = (-1, True)
NOTHING: Final[Goal] = frozenset((NEVER,))


class Language:
    """The texts of a regex. The automaton is compiled when it is needed."""

    def __init__(self, regex: str, *, whole: bool) -> None:
        """`whole`: the regex matches whole texts, else any part. Raises `RegexError`."""
        self.key = (regex, whole)
        self._tree = parse(regex)
        self.expr: Expr | None = plain(self._tree, starts=whole, ends=whole)
        """The language without assertions, or None if there is no simple way to write it."""

    @cached_property
    def dfa(self) -> Dfa:
        """The automaton. Raises `RegexError` if it is too large."""
        regex, whole = self.key
        return match_language(regex) if whole else search_language(regex)

    @property
    def surely_matches(self) -> bool:
        """Whether some text matches, as far as this is known without the automaton."""
        return self.expr is not None and _has_texts(self.expr)


def _has_texts(expr: Expr) -> bool:
    if isinstance(expr, Chars):
        return bool(expr.ranges)
    if isinstance(expr, And | Not | Look | Assertion):
        return False
    if isinstance(expr, Repeat):
        return not expr.low or _has_texts(expr.part)
    return all(map(_has_texts, expr.parts))


@dataclass(frozen=True, slots=True)
class Values:
    """Null and booleans: one of some values."""

    values: frozenset[bool | None]

    def merge(self, other: Values) -> Values | None:
        """Return what holds if both hold; None if nothing can."""
        both = self.values & other.values
        return Values(both) if both else None


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Numbers in decimal notation; None: all, also those with an exponent."""

    dfa: Dfa | None = None

    def merge(self, other: Numbers) -> Numbers | None:
        """Return what holds if both hold; None if nothing can."""
        if self.dfa is None or other.dfa is None:
            return other if self.dfa is None else self
        both = intersection(self.dfa, other.dfa)
        return None if both.is_empty() else Numbers(both)


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """Texts of some languages and not of others, with a length in code points."""

    within: tuple[Language, ...] = ()
    outside: tuple[Language, ...] = ()
    low: int = 0
    high: int | None = None
    texts: frozenset[str] | None = None
    """If it is not None: the only texts."""
    others: frozenset[str] = frozenset()
    """Excluded texts."""

    def merge(self, other: Strings) -> Strings | None:
        """Return what holds if both hold; None if nothing can, as far as that is simple."""
        found = Strings(
            _joined(self.within, other.within),
            _joined(self.outside, other.outside),
            max(self.low, other.low),
            _least(self.high, other.high),
            _both(self.texts, other.texts),
            self.others | other.others,
        )
        if {language.key for language in found.within} & {lang.key for lang in found.outside}:
            return None
        if found.high is not None and found.high < found.low:
            return None
        return None if found.is_surely_empty() else found

    def is_surely_empty(self) -> bool:
        """Return whether it is known without automata that no text fits."""
        return self.texts is not None and not any(map(self.fits, self.texts))

    def fits(self, text: str) -> bool:
        """Return whether a text has these properties."""
        return (
            self.low <= len(text)
            and (self.high is None or len(text) <= self.high)
            and (self.texts is None or text in self.texts)
            and text not in self.others
            and all(language.dfa.matches(text) for language in self.within)
            and not any(language.dfa.matches(text) for language in self.outside)
        )

    def surely_within(self, other: Strings) -> bool:
        """Return whether it is simple to see that the other's constraints hold for each text."""
        return (
            {language.key for language in other.within} <= {lang.key for lang in self.within}
            and {language.key for language in other.outside} <= {lang.key for lang in self.outside}
            and other.low <= self.low
            and (other.high is None or (self.high is not None and self.high <= other.high))
            and (other.texts is None or (self.texts is not None and self.texts <= other.texts))
            and other.others <= self.others
        )

    def dfa(self) -> Dfa:
        """Return the product of the languages, without the bounds on the length."""
        return _product(self.within, self.outside)

    def is_empty(self) -> bool:
        """Return whether no text fits."""
        if self.texts is not None:
            return not any(map(self.fits, self.texts))
        if not self.outside and not self.within:
            return self.high == 0 and "" in self.others
        single = self.within[0] if len(self.within) == 1 and not self.outside else None
        if single is not None and single.surely_matches and not self.low and self.high is None:
            return not self._has_others(single.dfa) if self.others else False
        product = self.dfa()
        if self.others:
            return not self._has_others(product)
        return not product.has_length(self.low, self.high)

    def _has_others(self, product: Dfa) -> bool:
        """Return whether a text besides the excluded ones fits."""
        texts = product.texts(len(self.others))
        if texts is None:
            return product.has_length(self.low, self.high)
        rest = Strings(low=self.low, high=self.high, others=self.others)
        return any(map(rest.fits, texts))


@lru_cache(maxsize=128)
def _product(within: tuple[Language, ...], outside: tuple[Language, ...]) -> Dfa:
    if outside:
        return difference(_product(within, outside[:-1]), outside[-1].dfa)
    return intersection(_product(within[:-1], ()), within[-1].dfa) if within else ANY_TEXT


def _joined(a: tuple[Language, ...], b: tuple[Language, ...]) -> tuple[Language, ...]:
    known = {language.key for language in a}
    return (*a, *(language for language in b if language.key not in known))


def _both(a: frozenset[str] | None, b: frozenset[str] | None) -> frozenset[str] | None:
    return b if a is None else a if b is None else a & b


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


@dataclass(frozen=True, slots=True)
class Contains:
    """So many items of an array fit a schema."""

    goal: Goal
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays: schemas of the first items and of the rest, and numbers of items."""

    first: tuple[Goal, ...] = ()
    rest: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False

    def merge(self, other: Arrays) -> Arrays | None:
        """Return what holds if both hold; None if nothing can, as far as that is simple."""
        size = max(len(self.first), len(other.first))
        found = Arrays(
            tuple(self.item(i) | other.item(i) for i in range(size)),
            self.rest | other.rest,
            max(self.low, other.low),
            _least(self.high, other.high),
            tuple(dict.fromkeys((*self.contains, *other.contains))),
            self.is_unique or other.is_unique,
        )
        return None if found.high is not None and found.high < found.low else found

    def item(self, index: int) -> Goal:
        """Return the schemas of an item."""
        return self.first[index] if index < len(self.first) else self.rest


@dataclass(frozen=True, slots=True, eq=False)
class PropertySet:
    """What one schema says of an object's properties."""

    names: Mapping[str, Goal]
    patterns: tuple[tuple[Language, Goal], ...] = ()
    additional: Goal = ANYTHING
    is_explicit: bool = True
    """The schema says something of additional properties."""
    is_naming: bool = False
    """The schema names properties, so others are not expected."""

    def goal(self, name: str) -> Goal:
        """Return the schemas of a property."""
        found = [self.names[name]] if name in self.names else []
        found += [goal for language, goal in self.patterns if language.dfa.matches(name)]
        return frozenset().union(*found) if found else self.additional

    def covers(self, name: str) -> bool:
        """Return whether a property is no additional one."""
        return name in self.names or any(lang.dfa.matches(name) for lang, _ in self.patterns)


@dataclass(frozen=True, slots=True, eq=False)
class Witness:
    """A property that must exist: its name fits, and its value does."""

    names: Strings
    goal: Goal


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Objects: their properties, and how many of them there are."""

    sets: tuple[PropertySet, ...] = ()
    names: tuple[Goal, ...] = ()
    """Schemas of all properties' names."""
    required: Mapping[str, None] = field(default_factory=dict)
    low: int = 0
    high: int | None = None
    witnesses: tuple[Witness, ...] = ()

    def merge(self, other: Objects) -> Objects | None:
        """Return what holds if both hold; None if nothing can, as far as that is simple."""
        found = Objects(
            (*self.sets, *other.sets),
            tuple(dict.fromkeys((*self.names, *other.names))),
            {**self.required, **other.required},
            max(self.low, other.low),
            _least(self.high, other.high),
            (*self.witnesses, *other.witnesses),
        )
        if found.high is not None and found.high < max(found.low, len(found.required)):
            return None
        never = any(NEVER in goals.goal(name) for goals in found.sets for name in found.required)
        return None if never else found

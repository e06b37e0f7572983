"""Grammar rules as data, and the ones that can produce a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminal:
    """A reference to a terminal; each has a text."""

    name: str


@dataclass(frozen=True, slots=True)
class Times:
    """Symbols several times."""

    symbols: tuple[Symbol, ...]
    low: int
    high: int | None


Symbol = Rule | Terminal | Times
MAX_RULES: Final = 60_000


class TooManyRulesError(Exception):
    """A grammar has more than `MAX_RULES` rules."""


class Rules:
    """The rules of a grammar, each with its alternatives."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[tuple[Symbol, ...]]] = {}

    def new(self) -> Rule:
        """Return a rule without alternatives."""
        if len(self._bodies) > MAX_RULES:
            raise TooManyRulesError
        name = f"r{len(self._bodies)}"
        self._bodies[name] = []
        return Rule(name)

    def add(self, rule: Rule, *symbols: Symbol) -> None:
        """Add an alternative."""
        self._bodies[rule.name].append(symbols)

    def lines(self, root: Rule) -> list[str]:
        """Return the rules that the root uses, without alternatives that produce no text.

        Empty if the root produces none.
        """
        productive = self._productive()
        if root.name not in productive:
            return []
        lines = []
        seen = {root.name}
        pending = [root.name]
        while pending:
            name = pending.pop()
            bodies = [body for body in self._bodies[name] if _produces(body, productive)]
            texts = dict.fromkeys(_text(body, productive) for body in bodies)
            lines.append(f"{name}: {' | '.join(texts)}")
            for used in (used for body in bodies for used in _used(body, productive)):
                if used not in seen:
                    seen.add(used)
                    pending.append(used)
        return lines

    def _productive(self) -> set[str]:
        users: dict[str, set[str]] = {}
        all_names = {*self._bodies}
        for name, bodies in self._bodies.items():
            for body in bodies:
                for used in _used(body, all_names):
                    users.setdefault(used, set()).add(name)
        found: set[str] = set()
        pending = [*self._bodies]
        while pending:
            name = pending.pop()
            if name not in found and any(_produces(b, found) for b in self._bodies[name]):
                found.add(name)
                pending += users.get(name, ())
        return found


def _produces(body: Iterable[Symbol], productive: set[str]) -> bool:
    return all(
        symbol.name in productive
        if isinstance(symbol, Rule)
        else not isinstance(symbol, Times)
        or not symbol.low
        or _produces(symbol.symbols, productive)
        for symbol in body
    )


def _used(body: Iterable[Symbol], productive: set[str]) -> list[str]:
    """Return the rules in a body, without optional parts that produce nothing."""
    found = []
    for symbol in body:
        if isinstance(symbol, Rule):
            found.append(symbol.name)
        elif isinstance(symbol, Times) and _produces(symbol.symbols, productive):
            found += _used(symbol.symbols, productive)
    return found


def _text(body: Iterable[Symbol], productive: set[str]) -> str:
    texts = []
    for symbol in body:
        if not isinstance(symbol, Times):
            texts.append(symbol.name)
        elif symbol.high != 0 and _produces(symbol.symbols, productive):
            inner = _text(symbol.symbols, productive)
            times = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get(
                (symbol.low, symbol.high)
            )
            if times is None:
                times = f"{{{symbol.low},{'' if symbol.high is None else symbol.high}}}"
            texts.append(f"({inner}){times}")
    return " ".join(texts) or '""'

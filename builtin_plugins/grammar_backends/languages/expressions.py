"""Regular expressions as trees. What a regex means over decoded text, without its syntax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from builtin_plugins.grammar_backends.languages.code_points import ALL, Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    """The parts one after the other; no parts match the empty text."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the parts."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times."""

    part: Expr
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A position: the start or end of the text, a word boundary or none."""

    kind: Literal["start", "end", "word", "no word"]


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead or lookbehind."""

    part: Expr
    is_lookbehind: bool
    is_negative: bool


@dataclass(frozen=True, slots=True)
class And:
    """Texts that match all parts; only in `plain` expressions."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Texts that do not match; only in `plain` expressions."""

    part: Expr


Expr = Chars | Seq | Alt | Repeat | Assertion | Look | And | Not

EMPTY: Final = Seq(())
ANY: Final = Chars(ALL)
ANYTHING: Final = Repeat(ANY, 0, None)


def seq(*parts: Expr) -> Expr:
    """Return a sequence, flattened."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.parts if isinstance(part, Seq) else (part,)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*parts: Expr) -> Expr:
    """Return alternatives, flattened."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.parts if isinstance(part, Alt) else (part,)
    distinct = [*dict.fromkeys(flat)]
    return distinct[0] if len(distinct) == 1 else Alt(tuple(distinct))


def literal(text: str) -> Expr:
    """Return the expression of one text."""
    return seq(*(Chars(((ord(c), ord(c)),)) for c in text))


def has_assertions(expr: Expr) -> bool:
    """Return whether an expression contains an assertion or a lookaround."""
    if isinstance(expr, Assertion | Look):
        return True
    if isinstance(expr, Chars):
        return False
    parts = expr.parts if isinstance(expr, Seq | Alt | And) else (expr.part,)
    return any(map(has_assertions, parts))


def plain(expr: Expr, *, starts: bool = False, ends: bool = False) -> Expr | None:
    """Return the texts in which an expression matches somewhere, without assertions.

    `starts`: matches begin at the start of the text; `ends`: they end at its end. Serves anchors
    and lookaheads at the ends of alternatives; None for assertions anywhere else.
    """
    if isinstance(expr, Alt):
        parts = [plain(part, starts=starts, ends=ends) for part in expr.parts]
        return None if None in parts else alt(*(part for part in parts if part is not None))
    parts_left = [*expr.parts] if isinstance(expr, Seq) else [expr]
    ahead: list[Look] = []
    while parts_left and isinstance(first := parts_left[0], Assertion | Look):
        if isinstance(first, Look) and not first.is_lookbehind:
            ahead.append(first)
        elif first == Assertion("start"):
            starts = True
        else:
            break
        parts_left.pop(0)
    while parts_left and parts_left[-1] == Assertion("end"):
        ends = True
        parts_left.pop()
    body = seq(*parts_left)
    if has_assertions(body) or (ahead and not starts):
        return None
    whole = seq(*(() if starts else (ANYTHING,)), body, *(() if ends else (ANYTHING,)))
    factors: list[Expr] = [whole]
    for look in ahead:
        inner = plain(look.part, starts=True)
        if inner is None:
            return None
        factors.append(Not(inner) if look.is_negative else inner)
    return factors[0] if len(factors) == 1 else And(tuple(factors))

"""Sets of numbers as automata over decimal notation without an exponent.

Such an automaton holds all notations of each of its numbers (1, 1.0, 1.00), so the complement
within `DECIMAL` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, TypeVar

from builtin_plugins.grammar_backends.languages.dfa import (
    NO_TEXT,
    Dfa,
    alphabet_of,
    difference,
    explore,
    intersection,
    union,
)
from builtin_plugins.grammar_backends.languages.expressions import (
    EMPTY,
    Alt,
    Chars,
    Repeat,
    alt,
    literal,
    seq,
)
from builtin_plugins.grammar_backends.languages.regex_compiler import (
    compile_expr,
    match_language,
)

DECIMAL: Final = match_language(r"-?(0|[1-9]\d*)(\.\d+)?")
"""All numbers."""
INTEGER: Final = match_language(r"-?(0|[1-9]\d*)(\.0+)?")
"""Numbers without a fraction, whatever their notation."""
_WITHOUT_POINT: Final = match_language(r"-?(0|[1-9]\d*)")
_CHARACTERS: Final = "-.0123456789"
_ALPHABET: Final = alphabet_of(((ord(c), ord(c)),) for c in _CHARACTERS)
_BY_CLASS: Final = {_ALPHABET.class_of(ord(c)): c for c in _CHARACTERS}
MAX_REMAINDERS: Final = 4_000

State = TypeVar("State", bound=Hashable)
_Compared = tuple[bool, bool, int, int]
Relation = Literal[">=", ">", "<=", "<"]


def others(numbers: Dfa) -> Dfa:
    """Return the numbers that are not in a set."""
    return difference(DECIMAL, numbers)


def notation(numbers: Dfa) -> Dfa:
    """Return the notations to write: integers without a point."""
    plain = intersection(numbers, _WITHOUT_POINT)
    return union(plain, difference(numbers, INTEGER))


def _over_decimals(
    start: State, step: Callable[[State, str], State | None], accepts: Callable[[State], bool]
) -> Dfa:
    """Return the numbers for which a reader of characters ends in an accepting state."""

    def steps(state: State | None) -> list[State | None]:
        return [
            None
            if state is None or (character := _BY_CLASS.get(group)) is None
            else step(state, character)
            for group in range(_ALPHABET.size)
        ]

    first: State | None = start
    read = explore(_ALPHABET, first, steps, lambda state: state is not None and accepts(state))
    return intersection(DECIMAL, read)


def exact(value: float | int) -> Fraction:
    """Return a JSON number as an exact fraction; floats by their shortest decimal notation."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def text_of(value: Fraction) -> str | None:
    """Return the decimal notation of a number; None if it is too long."""
    sign = "-" if value < 0 else ""
    value = abs(value)
    whole = value.numerator // value.denominator
    rest = value - whole
    if whole >= 10**400:
        return None
    digits = ""
    while rest:
        rest *= 10
        digit = rest.numerator // rest.denominator
        digits += str(digit)
        rest -= digit
        if len(digits) > 400:
            return None
    return f"{sign}{whole}{'.' * bool(digits)}{digits}"


@lru_cache(maxsize=256)
def compared(relation: Relation, bound: Fraction) -> Dfa | None:
    """Return the numbers in a relation to a bound; None if the bound has too many digits."""
    text = text_of(abs(bound))
    if text is None:
        return None
    whole, _, fraction = text.partition(".")

    # A state: negative, all digits zero, comparison so far (-1, 0, 1), digits before the point or
    # -1 - digits after it. The comparison of whole parts is by length first.
    def step(state: _Compared, character: str) -> _Compared | None:
        negative, is_zero, order, place = state
        if character == "-":
            return (True, is_zero, order, place)
        if character == ".":
            if place < 0:
                return None
            return (negative, is_zero, -1 if place < len(whole) else order, -1)
        is_zero = is_zero and character == "0"
        if place >= 0:
            if place >= len(whole):
                return (negative, is_zero, 1, len(whole) + 1)
            if order == 0:
                order = (character > whole[place]) - (character < whole[place])
            return (negative, is_zero, order, place + 1)
        at = -1 - place
        if order == 0:
            other = fraction[at] if at < len(fraction) else "0"
            order = (character > other) - (character < other)
        return (negative, is_zero, order, -1 - min(at + 1, len(fraction)))

    def accepts(state: _Compared) -> bool:
        negative, is_zero, order, place = state
        if place >= 0 and place < len(whole):
            order = -1
        elif order == 0 and (place >= 0 or -1 - place < len(fraction)) and fraction:
            rest = fraction if place >= 0 else fraction[-1 - place :]
            order = -1 if rest.strip("0") else 0
        if negative and not is_zero:
            sign = -1 if bound >= 0 else -order
        else:
            sign = 1 if bound < 0 else order
        return {">=": sign >= 0, ">": sign > 0, "<=": sign <= 0, "<": sign < 0}[relation]

    return _over_decimals((False, True, 0, 0), step, accepts)


@lru_cache(maxsize=256)
def multiples(divisor: Fraction) -> Dfa | None:
    """Return the multiples of a number; None if there are too many remainders."""
    places = 0
    while (divisor * 10**places).denominator != 1:
        places += 1
        if places > 40:
            return None
    step_size = int(divisor * 10**places)
    if step_size * (places + 2) > MAX_REMAINDERS:
        return None

    # A state: remainder of the digits so far, number of digits after the point (-1: before it).
    def step(state: tuple[int, int], character: str) -> tuple[int, int] | None:
        rest, place = state
        if character == "-":
            return state
        if character == ".":
            return (rest, 0) if place < 0 else None
        if place == places:
            return state if character == "0" else None
        return ((rest * 10 + int(character)) % step_size, place if place < 0 else place + 1)

    def accepts(state: tuple[int, int]) -> bool:
        rest, place = state
        scale: int = 10 ** (places - max(place, 0))
        return rest * scale % step_size == 0

    return _over_decimals((0, -1), step, accepts)


def one_of(values: list[Fraction]) -> Dfa | None:
    """Return some numbers in all their notations; None if one has too many digits."""
    texts = [text_of(value) for value in values]
    if any(text is None for text in texts):
        return None
    zeros = Repeat(Chars(((0x30, 0x30),)), 0, None)
    after_point = Alt((EMPTY, seq(literal(".0"), zeros)))
    ways = [
        seq(literal(text), zeros if "." in text else after_point)
        for text in [*texts, *(["-0"] * (0 in values))]
        if text is not None
    ]
    return compile_expr(alt(*ways)) if ways else NO_TEXT

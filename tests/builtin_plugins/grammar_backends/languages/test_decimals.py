"""Sets of numbers hold in all decimal notations."""

from __future__ import annotations

import operator
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.grammar_backends.languages.decimals import (
    DECIMAL,
    INTEGER,
    compared,
    multiples,
    notation,
    one_of,
    text_of,
)
from builtin_plugins.grammar_backends.languages.dfa import intersection

RELATIONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
NOTATIONS = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?", fullmatch=True).filter(
    str.isascii
)


@given(st.sampled_from(sorted(RELATIONS)), NOTATIONS, st.lists(NOTATIONS, max_size=20))
@settings(max_examples=60, deadline=None)
def test_comparisons_are_exact(relation: str, bound: str, texts: list[str]) -> None:
    dfa = compared(relation, Fraction(bound))
    assert dfa is not None
    for text in [*texts, bound, f"{bound}{'0' if '.' in bound else '.0'}"]:
        assert dfa.matches(text) == RELATIONS[relation](Fraction(text), Fraction(bound))


@given(NOTATIONS, st.lists(NOTATIONS, max_size=10), st.lists(st.integers(-9, 9), max_size=5))
@settings(max_examples=60, deadline=None)
def test_multiples_are_exact(divisor: str, texts: list[str], factors: list[int]) -> None:
    step = abs(Fraction(divisor))
    dfa = multiples(step) if step else None
    if dfa is None:
        return
    exact = [text_of(step * factor) for factor in factors]
    for text in [*texts, *exact]:
        assert text is not None
        assert dfa.matches(text) == ((Fraction(text) / step).denominator == 1)


@given(st.lists(NOTATIONS, max_size=4), st.lists(NOTATIONS, max_size=10))
@settings(max_examples=60, deadline=None)
def test_listed_numbers_match_in_all_notations(values: list[str], texts: list[str]) -> None:
    numbers = [Fraction(value) for value in values]
    dfa = one_of(numbers)
    assert dfa is not None
    for text in [*texts, *values, *(f"{v}{'0' if '.' in v else '.00'}" for v in values)]:
        assert dfa.matches(text) == (Fraction(text) in numbers)


def test_integers_are_written_without_a_point() -> None:
    assert notation(DECIMAL).matches("1.5")
    assert notation(DECIMAL).matches("1")
    assert not notation(DECIMAL).matches("1.0")


def test_64_bit_bounds_are_exact() -> None:
    high = compared("<=", Fraction(2**64 - 1))
    low = compared(">=", Fraction(0))
    assert high is not None
    assert low is not None
    numbers = notation(intersection(INTEGER, intersection(high, low)))
    assert numbers.matches("18446744073709551615")
    assert not numbers.matches("18446744073709551616")
    assert not numbers.matches("-1")

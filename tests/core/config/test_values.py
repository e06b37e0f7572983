"""Conversion of values to the types of fields."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.fields import metavar
from core.config.values import BadValue, ContextSize, Size, ValueType
from core.errors import ConfigError

ACCEPTED: list[tuple[Any, Any, Any]] = [
    (int, "5", 5),
    (int, "-1", -1),
    (int | None, "None", None),
    (int | None, "", None),
    (int | None, None, None),
    (float, "1e-3", 0.001),
    (float, 2, 2.0),
    (str, "None", "None"),
    (str, "", ""),
    (str | None, "None", None),
    (str, Path("a/b"), "a/b"),
    (bool, True, True),
    (bool | str | None, True, True),
    (bool | str | None, "hf_x", "hf_x"),
    (Literal["b", "a"], "a", "a"),
    (Literal["a"] | None, "None", None),
    (Literal["auto"] | str, "mine", "mine"),
    (Literal[0, 1, "O2"], "1", 1),
    (list[str], ["a", "b"], ["a", "b"]),
    (list[str], "a", ["a"]),
    (list[str], ("a",), ["a"]),
    (list[str], '["a", "b"]', ["a", "b"]),
    (list[str], ["[]"], []),
    (list[int], ["[1, 2]"], [1, 2]),
    (list[str], ["[a"], ["[a"]),
    (list[str], ["[a]", "[b]"], ["[a]", "[b]"]),
    (list[int] | None, ["1", "2"], [1, 2]),
    (str | list[str], "a,b", "a,b"),
    (tuple[int, float], ["1", "2"], (1, 2.0)),
    (dict, '{"a": {"b": 1}}', {"a": {"b": 1}}),
    (dict[str, Any] | None, "None", None),
    (dict[str, Any], {"a": 1}, {"a": 1}),
    (dict[str, Any] | str, "cpu", "cpu"),
    (dict[str, Any] | str, '{"a": 1}', {"a": 1}),
    (Size, "1k", 1000),
    (Size, "1K", 1024),
    (Size, "25.6k", 25600),
    (Size, "2m", 2_000_000),
    (Size, "2M", 2 * 1024**2),
    (Size, "1g", 10**9),
    (Size, "1T", 1024**4),
    (Size | None, "None", None),
    (ContextSize | None, "auto", -1),
    (ContextSize | None, "-1", -1),
    (ContextSize, "4k", 4000),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (int, "abc", "expected an integer"),
    (int, "1k", "expected an integer"),
    (int, True, "expected an integer"),
    (int, 1.5, "expected an integer"),
    (int, None, "expected an integer"),
    (float, "x", "expected a number"),
    (bool, "yes", "expected true or false"),
    (bool, 1, "expected true or false"),
    (str, 5, "expected text"),
    (
        Literal["float16", "float32"],
        "flaot16",
        "expected one of float16, float32; did you mean 'float16'?",
    ),
    (Literal[1, 2], True, "expected one of 1, 2"),
    (list[int], ["a"], "expected an integer"),
    (list[str], "[1]", "expected text"),
    (tuple[int, int], ["1"], "expected 2 values, not 1"),
    (dict, "{", "expected a JSON object, or its keys one by one after a dot; not JSON"),
    (dict, "[1]", "expected a JSON object"),
    (Size, "auto", "expected an integer"),
    (Size, "1.5", "expected an integer"),
    (Size, "1.0001k", "1.0001k is not a whole number"),
    (
        Size,
        "25.6K",
        "Decimals are not allowed with binary suffixes like K. Did you mean to use 25.6k instead?",
    ),
]


@pytest.mark.parametrize(("hint", "value", "expected"), ACCEPTED, ids=lambda x: str(x))
def test_value_is_converted_to_the_annotated_type(hint: Any, value: Any, expected: Any) -> None:
    converted = ValueType.of(hint, "field").convert(value)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(("hint", "value", "message"), REFUSED, ids=lambda x: str(x))
def test_wrong_value_is_rejected_with_the_expected_type(
    hint: Any, value: Any, message: str
) -> None:
    with pytest.raises(BadValue) as caught:
        ValueType.of(hint, "field").convert(value)
    assert message in str(caught.value)


def test_unsupported_annotation_is_rejected_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"Unsupported type <class 'complex'> for argument field\."
    ):
        ValueType.of(complex, "field")


def test_choices_are_sorted_with_none_last() -> None:
    assert metavar(ValueType.of(Literal["b", "a"] | None, "field")) == "{a,b,None}"


@given(st.integers(0, 10**6), st.sampled_from("kKmMgGtT"))
def test_suffix_multiplies_exactly(number: int, suffix: str) -> None:
    base = 1000 if suffix.islower() else 1024
    power = "kmgt".index(suffix.lower()) + 1
    assert ValueType.of(Size, "field").convert(f"{number}{suffix}") == number * base**power


@given(st.decimals(0, 1000, places=3))
def test_decimal_with_decimal_suffix_is_exact(number: Decimal) -> None:
    assert ValueType.of(Size, "field").convert(f"{number}k") == int(number * 1000)


@given(
    st.text(max_size=12), st.sampled_from([Size | None, dict[str, Any], list[int], Literal["a"]])
)
def test_any_text_is_converted_or_rejected(text: str, hint: Any) -> None:
    with contextlib.suppress(BadValue):
        ValueType.of(hint, "field").convert(text)

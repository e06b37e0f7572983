"""Values are checked with whole schemas, by our own regexes and in bounded time."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.grammar_backends.schema_compiler.document import UncheckedError
from builtin_plugins.grammar_backends.schema_compiler.enforceable import broken_keywords
from tests.builtin_plugins.grammar_backends.schema_compiler.test_exact_masks import SCHEMAS, VALUES

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
SLOW = {"pattern": "^(a+)+$"}
DOUBLING = {
    "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    | {"d40": {"type": "object"}},
    "$ref": "#/$defs/d0",
}


@given(SCHEMAS, st.lists(VALUES, min_size=4, max_size=12))
@settings(max_examples=60, deadline=None)
def test_values_break_keywords_where_a_validator_says_so(schema: Any, values: list[Any]) -> None:
    schema = schema if isinstance(schema, dict) else {"allOf": [schema]}
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        try:
            broken = broken_keywords(schema, json.dumps(value))
        except UncheckedError:
            continue  # regexes and names next to unevaluated properties
        assert (broken == []) == validator.is_valid(value), f"{json.dumps(schema)}: {value!r}"


@pytest.mark.parametrize(
    ("schema", "value", "broken"),
    [
        (
            {"properties": {"a": {"uniqueItems": True}}},
            {"a": [1, 1.0]},
            ["properties.a.uniqueItems"],
        ),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, True, [1], "1"]}, []),
        ({"minProperties": 2}, {"a": 1}, ["minProperties"]),
        ({"properties": {"a": {"pattern": r"\bfoo\b"}}}, {"a": "food"}, ["properties.a.pattern"]),
        ({"properties": {"a": {"pattern": "^.$"}}}, {"a": "\n"}, ["properties.a.pattern"]),
        ({"properties": {"a": {"format": "date"}}}, {"a": "2023-02-29"}, ["properties.a.format"]),
        ({"patternProperties": {"^x": {"type": "null"}}}, {"xa": 1}, ["patternProperties.^x.type"]),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False},
            {"xa": 1, "b": 2},
            ["additionalProperties"],
        ),
        (
            {"$schema": DRAFT_4, "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}},
            {"a": 1},
            ["properties.a.minimum"],
        ),
    ],
)
def test_broken_keywords_are_named_by_path(schema: Any, value: Any, broken: list[str]) -> None:
    assert broken_keywords(schema, json.dumps(value)) == broken


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "http://a.b/c.json"}, "{}"),
        ({"$ref": "#"}, "{}"),
        ({"$schema": "http://a.b/c.json"}, "{}"),
        ({"allOf": [{"$schema": DRAFT_4, "properties": {"a": SLOW}}]}, '{"a": "a"}'),
        ({"properties": {"a": {"pattern": r"\A"}}}, '{"a": "a"}'),
        ({"properties": {"a": {"format": "regex"}}}, '{"a": "a"}'),
        ({"unevaluatedProperties": False, "patternProperties": {"^(a+)+$": {}}}, '{"a": 1}'),
        ({"type": "objekt"}, "{}"),
        ({"properties": 5}, '{"a": 1}'),
        ({"properties": {"a": {"minimum": "1"}}}, '{"a": 1}'),
        ({}, "{"),
        ({}, "[" * 50_000),
        ({}, f"{'9' * 5_000}"),
        ({"enum": ["x" * 70_000]}, "{}"),
        (DOUBLING, "{}"),
    ],
)
def test_what_cannot_be_evaluated_is_not_checked_in_bounded_time(schema: Any, value: str) -> None:
    begun_s = time.thread_time()
    with pytest.raises(UncheckedError):
        broken_keywords(schema, value)
    assert time.thread_time() - begun_s < 2


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SLOW, "a" * 60_000 + "b"),
        ({"additionalProperties": False, "patternProperties": SLOW}, {"a" * 60_000 + "b": 1}),
        ({"uniqueItems": True}, [[i, "a", None] for i in range(3_000)]),
    ],
    ids=["pattern", "names", "items"],
)
def test_long_values_take_bounded_time(schema: Any, value: Any) -> None:
    begun_s = time.thread_time()
    broken_keywords(schema, json.dumps(value))
    assert time.thread_time() - begun_s < 2

"""The suites' decision about a value agrees with its spellings, written one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.grammar.derivations import Derivations
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from tests.builtin_plugins.grammar_backends.schema_compiler.byte_masks import (
    ByteMasks,
    matches_whole_texts,
)
from tests.builtin_plugins.grammar_backends.schema_compiler.test_exact_masks import SCHEMAS, VALUES


def decided(schema: Any, value: Any) -> bytes | None:
    grammar = ByteMasks(schema).grammar
    return Derivations(grammar, matches_whole_texts).spelling(value, any_notation=True)


@given(SCHEMAS, st.lists(VALUES, min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_decisions_agree_with_all_spellings(schema: Any, values: list[Any]) -> None:
    try:
        masks = ByteMasks(schema)
    except UnsupportedSchemaError:
        return
    derivations = Derivations(masks.grammar, matches_whole_texts)
    for value in values:
        found = derivations.spelling(value, any_notation=True)
        assert (found is not None) == masks.allow_value(value), (schema, value, found)
        assert found is None or masks.allow(found.decode())


@pytest.mark.parametrize("size", [3, 24])
def test_decisions_about_many_properties_take_polynomial_time(size: int) -> None:
    names = [f"p{i}" for i in range(size)]
    named = {"properties": {name: {"type": "integer"} for name in names}}
    value = dict.fromkeys(reversed(names), 1)
    assert decided({**named, "additionalProperties": False}, value) is not None
    assert decided({**named, "additionalProperties": False}, {**value, "p1": ""}) is None
    assert decided({"additionalProperties": {"type": "integer"}}, {**value, "p1": ""}) is None


def test_property_that_must_fail_may_be_any_of_them() -> None:
    schema = {"type": "object", "not": {"additionalProperties": {"type": "null"}}}
    found = decided(schema, {"a": 1, "b": None, "c": None})
    assert found == b'{"b": null, "c": null, "a": 1}'
    assert decided(schema, {"a": None, "b": None}) is None

"""Masks allow exactly the values that a validator calls valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.grammar_backends.schema_compiler import alternatives
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from tests.builtin_plugins.grammar_backends.schema_compiler.byte_masks import ByteMasks

NAMES = st.sampled_from(["a", "b", "ab", "é"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.sampled_from([0.5, 1.5, -2.25, 3.0]),
    st.text(alphabet='ab"\\\né', max_size=3),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
BOUNDS = st.integers(0, 3)


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


LEAVES = st.one_of(
    st.booleans(),
    st.just({}),
    some(
        type=st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]),
        enum=st.lists(VALUES, min_size=1, max_size=3),
    ),
    some(const=VALUES),
    some(
        minimum=st.integers(-2, 3),
        exclusiveMaximum=st.sampled_from([0.5, 2, 4.75]),
        multipleOf=st.sampled_from([1, 2, 0.5]),
    ),
    some(
        minLength=BOUNDS,
        maxLength=BOUNDS,
        pattern=st.sampled_from(["a", "^a", "b$", "^[ab]*$", "^(?!a)", "é|\n", "^$"]),
    ),
    some(minItems=BOUNDS, maxItems=BOUNDS),
    some(minProperties=BOUNDS, maxProperties=BOUNDS, required=st.lists(NAMES, max_size=2)),
)


def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=2)
    return st.one_of(
        some(allOf=few),
        some(anyOf=few),
        some(oneOf=few),
        some(**{"not": inner}),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
        some(items=inner, prefixItems=few, minItems=BOUNDS),
        some(contains=inner, minContains=BOUNDS, maxContains=BOUNDS),
        some(
            properties=named,
            patternProperties=st.dictionaries(
                st.sampled_from(["a", "^b", "é$"]), inner, max_size=2
            ),
            additionalProperties=inner,
            required=st.lists(NAMES, max_size=2),
        ),
        some(
            propertyNames=inner,
            dependentRequired=st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
            dependentSchemas=named,
        ),
        some(properties=named, allOf=few, unevaluatedProperties=inner),
        st.fixed_dictionaries(
            {"unevaluatedProperties": inner},
            optional={
                "properties": named,
                "anyOf": st.lists(objects(inner), min_size=1, max_size=2),
                "oneOf": st.lists(objects(inner), min_size=1, max_size=2),
                "if": objects(inner),
                "then": objects(inner),
                "dependentSchemas": st.dictionaries(NAMES, objects(inner), max_size=1),
            },
        ),
        st.fixed_dictionaries(
            {"unevaluatedItems": inner},
            optional={
                "prefixItems": few,
                "contains": inner,
                "anyOf": st.lists(some(prefixItems=few, minItems=BOUNDS), min_size=1, max_size=2),
            },
        ),
    )


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas that evaluate properties."""
    return some(
        properties=st.dictionaries(NAMES, inner, min_size=1, max_size=2),
        required=st.lists(NAMES, max_size=1),
    )


SCHEMAS = st.recursive(LEAVES, grow, max_leaves=5)


def check(schema: Any, values: list[Any]) -> None:
    try:
        masks = ByteMasks(schema)
    except UnsupportedSchemaError as error:
        if "allows no value" in str(error):
            masks = None
        else:
            return
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        valid = validator.is_valid(value)
        allowed = masks is not None and masks.allow_value(value)
        assert allowed == valid, f"{json.dumps(schema)}: {value!r} is {valid=}, {allowed=}"


@given(SCHEMAS, st.lists(VALUES, min_size=4, max_size=12))
@settings(max_examples=120, deadline=None)
def test_masks_agree_with_a_validator(schema: Any, values: list[Any]) -> None:
    check(schema, values)


@given(SCHEMAS, st.lists(VALUES, min_size=4, max_size=12))
@settings(max_examples=60, deadline=None)
def test_masks_agree_with_a_validator_if_alternatives_exclude_each_other(
    schema: Any, values: list[Any]
) -> None:
    with few_alternatives():
        check(schema, values)


@contextmanager
def few_alternatives() -> Iterator[None]:
    """Let schemas need the second attempt at their alternatives."""
    with (
        patch.object(alternatives, "MAX_ALTERNATIVES", 1),
        patch.object(alternatives, "FEW_ALTERNATIVES", 0),
    ):
        yield


@pytest.mark.slow
@given(SCHEMAS, st.lists(VALUES, min_size=8, max_size=20))
@settings(max_examples=3000, deadline=None)
def test_masks_agree_with_a_validator_for_many_alternatives_that_exclude_each_other(
    schema: Any, values: list[Any]
) -> None:
    with few_alternatives():
        check(schema, values)


@pytest.mark.slow
@given(SCHEMAS, st.lists(VALUES, min_size=8, max_size=20))
@settings(max_examples=3000, deadline=None)
def test_masks_agree_with_a_validator_for_many_schemas(schema: Any, values: list[Any]) -> None:
    check(schema, values)

"""JSON schemas hold with every backend that accepts them; ignored keywords are rejected by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from builtin_plugins.grammar_backends.api import Constraint
from core.api import InvalidRequest
from core.api.sampling import StructuredOutputsParams
from tests.builtin_plugins.grammar_backends.test_distributions import (
    PRESENT,
    admitted,
)
from tests.builtin_plugins.grammar_backends.test_structural_tags import BACKENDS, VOCABULARY

WET = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
INTEGER = {"type": "integer"}
ALL = {**BACKENDS}
if "engine_lm_format_enforcer" in PRESENT:
    from engine_lm_format_enforcer.backend import FormatEnforcer

    ALL["engine_lm_format_enforcer"] = FormatEnforcer


def takes(name: str, schema: Any, text: str, **given: Any) -> bool:
    """Return whether a schema allows a text."""
    constraint = Constraint("json", json.dumps(schema), **given)
    ALL[name].check(constraint)
    done: bool = ALL[name](VOCABULARY).compile(constraint).start().replay([*text.encode(), 256])
    return done


@pytest.mark.parametrize("additional", [True, False])
@pytest.mark.parametrize("text", ['{"wet": true, "extra": 1}', '{"wet": true, "": 1}'])
@pytest.mark.parametrize("name", ALL)
def test_objects_only_have_their_schemas_properties(name: str, text: str, additional: bool) -> None:
    assert takes(name, WET, '{"wet": true}', additional_properties=additional)
    for schema in (
        WET,
        {"$defs": {"w": WET}, "$ref": "#/$defs/w"},
        {"anyOf": [WET, {"type": "null"}]},
    ):
        assert not takes(name, schema, text, additional_properties=additional)


@pytest.mark.parametrize("name", sorted({"xgrammar", "llguidance"} & {*ALL}))
def test_additional_properties_are_allowed_if_the_schema_states_so(name: str) -> None:
    assert takes(
        name,
        {**WET, "additionalProperties": True},
        '{"wet": true, "extra": 1}',
        additional_properties=False,
    )


def test_closing_objects_leaves_constants_unchanged() -> None:
    assert takes("llguidance", {"const": {"properties": 1}}, '{"properties":1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [WET, {"properties": {"b": INTEGER}}]},
        {**WET, "anyOf": [{"properties": {"b": INTEGER}}, {"properties": {"b": {"type": "null"}}}]},
        {**WET, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": INTEGER}}}},
    ],
)
def test_objects_have_the_properties_of_all_their_schemas(schema: Any) -> None:
    assert takes("llguidance", schema, '{"wet":true,"b":1}')
    assert not takes("llguidance", schema, '{"wet":true,"b":"x"}')
    assert not takes("llguidance", schema, '{"wet":true,"c":1}')


@pytest.mark.parametrize(
    "also", [{"anyOf": [{"required": ["wet"]}]}, {"allOf": [{"minProperties": 0}]}]
)
def test_objects_are_closed_next_to_schemas_without_properties(also: Any) -> None:
    assert takes("llguidance", {**WET, **also}, '{"wet":true}')
    assert not takes("llguidance", {**WET, **also}, '{"wet":true,"b":1}')


@pytest.mark.parametrize("parent", ["none", "a property", "a list"])
@pytest.mark.parametrize(
    "ref",
    ["http://localhost/a.json", "file:///etc/passwd", "a.json", "http://localhost/a#/$defs/x"],
)
@pytest.mark.parametrize("name", ALL)
def test_remote_references_are_rejected(name: str, ref: str, parent: str) -> None:
    schema: Any = {"$ref": ref}
    if parent == "a property":
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    elif parent == "a list":
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidRequest, match=r"structured_outputs\.json: .*\$ref"):
        takes(name, {**schema, "$defs": {"x": INTEGER}}, "1")


@pytest.mark.parametrize("name", ALL)
def test_property_may_be_named_like_a_keyword(name: str) -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}}, "required": ["$ref"]}
    assert takes(name, schema, '{"$ref":"http://localhost"}')


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({**WET, "required": ["dry"]}, "required of a property that is not among its properties"),
        ({**WET, "anyOf": [{"required": ["wet"]}]}, "properties next to anyOf"),
        ({**WET, "$ref": "#/$defs/x", "$defs": {"x": WET}}, "properties next to $ref"),
    ],
)
@pytest.mark.parametrize("name", sorted({*ALL} - {"llguidance"}))
def test_ignored_keywords_are_rejected_by_name(name: str, schema: Any, what: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        takes(name, schema, "{}")
    assert what in str(caught.value)


def test_type_next_to_alternatives_of_that_type_is_accepted() -> None:
    assert takes("xgrammar", {"type": "object", "anyOf": [WET]}, '{"wet": true}')


@pytest.mark.parametrize("name", sorted({"llguidance", "engine_outlines_core"} & {*ALL}))
@pytest.mark.parametrize("pattern", ["", " ?", r"[ \n]{0,2}"])
def test_whitespace_pattern_applies_everywhere(name: str, pattern: str) -> None:
    for blank in ("", " ", "  ", "\n", "\t", " \n "):
        fits = takes(name, WET, f'{{"wet":{blank}true}}', whitespace_pattern=pattern)
        assert fits == bool(re.fullmatch(pattern, blank))


def test_auto_chooses_a_backend_that_supports_whitespace_patterns() -> None:
    assert admitted(WET, whitespace_pattern=" ?") == "llguidance"
    with pytest.raises(
        InvalidRequest, match=r"structured_outputs.whitespace_pattern: is not supported by xgrammar"
    ):
        admitted(WET, whitespace_pattern=" ?", backend="xgrammar")


@pytest.mark.parametrize(
    "pattern", [" ", r"[ \t]+", "a?", ".*", "[^x]?", "(", r"\s*", " {9999999}?"]
)
def test_invalid_whitespace_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs.whitespace_pattern: "):
        StructuredOutputsParams(json=WET, whitespace_pattern=pattern)


def test_whitespace_pattern_is_for_json_only() -> None:
    with pytest.raises(
        InvalidRequest, match="whitespace_pattern: is for JSON, and has no meaning for regex"
    ):
        StructuredOutputsParams(regex="a", whitespace_pattern=" ?")

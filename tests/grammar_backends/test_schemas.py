"""Schemas are held to as they say, by every backend that takes them; what a library would pass over
is refused by name.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from test_distributions import PRESENT, admitted, needs_llguidance
from test_structural_tags import BACKENDS, VOCABULARY

from core.api import Constraint, InvalidRequest, StructuredOutputsParams

WET = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
INTEGER = {"type": "integer"}
ALL = {**BACKENDS}
if "engine_lm_format_enforcer" in PRESENT:
    from engine_lm_format_enforcer.backend import FormatEnforcer

    ALL["engine_lm_format_enforcer"] = FormatEnforcer


def takes(name: str, schema: Any, text: str, **given: Any) -> bool:
    """Say whether a text may come out under a schema."""
    constraint = Constraint("json", json.dumps(schema), **given)
    ALL[name].check(constraint)
    done: bool = ALL[name](VOCABULARY).compile(constraint).start().replay([*text.encode(), 256])
    return done


@pytest.mark.parametrize("additional", [True, False])
@pytest.mark.parametrize("text", ['{"wet": true, "extra": 1}', '{"wet": true, "": 1}'])
@pytest.mark.parametrize("name", ALL)
def test_objects_have_the_properties_their_schema_names(
    name: str, text: str, additional: bool
) -> None:
    assert takes(name, WET, '{"wet": true}', additional_properties=additional)
    for schema in (
        WET,
        {"$defs": {"w": WET}, "$ref": "#/$defs/w"},
        {"anyOf": [WET, {"type": "null"}]},
    ):
        assert not takes(name, schema, text, additional_properties=additional)


@pytest.mark.parametrize("name", sorted({"xgrammar", "engine_llguidance"} & {*ALL}))
def test_others_may_come_where_the_schema_says_so(name: str) -> None:
    assert takes(
        name,
        {**WET, "additionalProperties": True},
        '{"wet": true, "extra": 1}',
        additional_properties=False,
    )


@needs_llguidance
def test_closing_objects_leaves_values_alone() -> None:
    assert takes("engine_llguidance", {"const": {"properties": 1}}, '{"properties":1}')


@needs_llguidance
@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [WET, {"properties": {"b": INTEGER}}]},
        {**WET, "anyOf": [{"properties": {"b": INTEGER}}, {"required": ["wet"]}]},
        {**WET, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": INTEGER}}}},
    ],
)
def test_properties_of_one_object_in_several_schemas_are_refused_by_name(schema: Any) -> None:
    with pytest.raises(
        InvalidRequest,
        match="properties of one object in several schemas; state additionalProperties",
    ):
        takes("engine_llguidance", schema, "{}")


@needs_llguidance
@pytest.mark.parametrize(
    "also", [{"anyOf": [{"required": ["wet"]}]}, {"allOf": [{"minProperties": 0}]}]
)
def test_objects_are_closed_beside_what_names_no_properties(also: Any) -> None:
    assert takes("engine_llguidance", {**WET, **also}, '{"wet":true}')
    assert not takes("engine_llguidance", {**WET, **also}, '{"wet":true,"b":1}')


@pytest.mark.parametrize("place", ["itself", "a property", "a list"])
@pytest.mark.parametrize(
    "ref",
    ["http://localhost/a.json", "file:///etc/passwd", "a.json", "http://localhost/a#/$defs/x"],
)
@pytest.mark.parametrize("name", ALL)
def test_references_to_elsewhere_are_refused(name: str, ref: str, place: str) -> None:
    schema: Any = {"$ref": ref}
    if place == "a property":
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    elif place == "a list":
        schema = {"type": "array", "items": schema}
    with pytest.raises(
        InvalidRequest, match=r"structured_outputs\.json: .*(\$ref|not present in a registry)"
    ):
        takes(name, {**schema, "$defs": {"x": INTEGER}}, "1")


@pytest.mark.parametrize("name", ALL)
def test_a_property_may_be_called_like_a_keyword(name: str) -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}}, "required": ["$ref"]}
    assert takes(name, schema, '{"$ref":"http://localhost"}')


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({**WET, "required": ["dry"]}, "required of a property that is not among its properties"),
        ({**WET, "anyOf": [{"required": ["wet"]}]}, "properties beside anyOf"),
        ({**WET, "$ref": "#/$defs/x", "$defs": {"x": WET}}, "properties beside $ref"),
    ],
)
@pytest.mark.parametrize("name", sorted({*ALL} - {"engine_llguidance"}))
def test_what_a_library_would_pass_over_is_refused_by_name(
    name: str, schema: Any, what: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        takes(name, schema, "{}")
    assert what in str(caught.value)


def test_a_type_beside_alternatives_of_that_type_is_nothing_new() -> None:
    assert takes("xgrammar", {"type": "object", "anyOf": [WET]}, '{"wet": true}')


@pytest.mark.parametrize("name", sorted({"engine_llguidance", "engine_outlines_core"} & {*ALL}))
@pytest.mark.parametrize("pattern", ["", " ?", r"[ \n]{0,2}"])
def test_whitespace_is_of_the_pattern_wherever_it_comes(name: str, pattern: str) -> None:
    for blank in ("", " ", "  ", "\n", "\t", " \n "):
        fits = takes(name, WET, f'{{"wet":{blank}true}}', whitespace_pattern=pattern)
        assert fits == bool(re.fullmatch(pattern, blank))


@needs_llguidance
def test_auto_takes_a_backend_that_serves_the_whitespace_asked_for() -> None:
    assert admitted(WET, whitespace_pattern=" ?") == "llguidance"
    with pytest.raises(
        InvalidRequest, match=r"structured_outputs.whitespace_pattern: is not served by xgrammar"
    ):
        admitted(WET, whitespace_pattern=" ?", disable_fallback=True)


@pytest.mark.parametrize(
    "pattern", [" ", r"[ \t]+", "a?", ".*", "[^x]?", "(", r"\s*", " {9999999}?"]
)
def test_whitespace_that_would_be_none_or_must_come_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs.whitespace_pattern: "):
        StructuredOutputsParams(json=WET, whitespace_pattern=pattern)


def test_whitespace_is_asked_for_of_json_only() -> None:
    with pytest.raises(
        InvalidRequest, match="whitespace_pattern: is for JSON, and has no meaning for regex"
    ):
        StructuredOutputsParams(regex="a", whitespace_pattern=" ?")

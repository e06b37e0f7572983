"""Schemas that were refused or held loosely."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from builtin_plugins.grammar_backends.schema_compiler.compiler import compile_schema
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.enforceable import (
    CompileBudget,
    enforceable,
)
from tests.builtin_plugins.grammar_backends.schema_compiler.byte_masks import ByteMasks

DISCRIMINATED = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"t": {"const": "a"}, "v": {"type": "integer"}},
            "required": ["t", "v"],
        },
        {
            "type": "object",
            "properties": {"t": {"const": "b"}, "w": {"type": "string"}},
            "required": ["t", "w"],
        },
    ],
    "discriminator": {"propertyName": "t"},
}
POINTERS = {
    "$defs": {"a/b": {"type": "integer"}, "c~d": {"type": "string"}, "a b": {"const": 1}},
    "type": "object",
    "properties": {
        "x": {"$ref": "#/$defs/a~1b"},
        "y": {"$ref": "#/$defs/c~0d"},
        "z": {"$ref": "#/$defs/a%20b"},
    },
}
TUPLE = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
    "required": ["v"],
}


def closed(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"}},
        "additionalProperties": False,
    }


COMMANDS = {"oneOf": [closed(name) for name in ("ps", "cmd", "sh", "bash")]}
MAPS = {
    "type": "object",
    "oneOf": [{"additionalProperties": {"type": name}} for name in ("string", "null", "array")],
}
SIBLINGS = {
    "required": ["t"],
    "oneOf": [
        {
            "properties": {"t": {"enum": [f"t{i}"]}, "v": {"minimum": i}, "w": {"maxLength": i}},
            "required": ["v"],
        }
        for i in range(24)
    ],
}
"""The keyword next to `oneOf` makes the branches exclude each other."""
OVERLAPPING = {
    "oneOf": [
        {
            "properties": {
                "type": {"type": "string"},
                name: {"type": "array"},
                "box": {"minItems": 1},
            },
            "required": ["type", name],
        }
        for name in ("points", "lines", "areas", "parts", "features")
    ],
}
UNEVALUATED = {
    "properties": {"a": {"type": "integer"}},
    "anyOf": [
        {"properties": {"b": {"const": 1}}, "required": ["b"]},
        {"properties": {"c": {"const": 1}}, "required": ["c"]},
    ],
    "unevaluatedProperties": False,
}
DYNAMIC = {
    "$id": "https://a.b/strict",
    "$dynamicAnchor": "node",
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {
        "tree": {
            "$id": "https://a.b/tree",
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": {"next": {"$dynamicRef": "#node"}},
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        (COMMANDS, '{"sh": "ls"}', "{}"),
        (COMMANDS, '{"bash": "ls"}', '{"sh": "ls", "cmd": "dir"}'),
        (MAPS, '{"a": null, "b": null}', '{"a": null, "b": "x"}'),
        (MAPS, '{"a": []}', "{}"),
        (SIBLINGS, '{"t": "t2", "v": 2, "w": "ab"}', '{"t": "t2", "v": 1}'),
        (
            OVERLAPPING,
            '{"type": "x", "points": [], "lines": 1}',
            '{"type": "x", "points": [], "lines": []}',
        ),
        (UNEVALUATED, '{"a": 1, "b": 1}', '{"a": 1, "b": 1, "c": 2}'),
        (UNEVALUATED, '{"b": 1, "c": 1}', '{"a": 1, "b": 1, "d": 1}'),
        (
            {"contains": {"const": 1}, "unevaluatedItems": {"const": 2}},
            "[2, 1, 1, 2]",
            "[2, 1, 3]",
        ),
        (DYNAMIC, '{"next": {"next": {}}}', '{"next": {"other": 1}}'),
        ({"type": "string", "pattern": "^[a]]$"}, '"a]"', '"a"'),
        ({"type": "string", "minLength": 1}, r'"say \"hi\"\nnext"', '""'),
        ({"type": "string", "minLength": 1.0}, '"a"', '""'),
        ({"type": "string", "maxLength": 1}, r'"\ud83d\udc32"', '"ab"'),
        ({"type": "string", "maxLength": 1}, '"🐲"', r'"\ud83d"'),
        ({"type": "string", "maxLength": 2}, r'"\u0041\/"', '"a\nb"'),
        ({"type": "string", "pattern": "^C:\\\\[a-z]+$"}, r'"C:\\temp"', r'"C:\temp"'),
        ({"type": "string", "pattern": "^.+\\n.+$"}, r'"a\nb"', '"a\nb"'),
        ({"type": "string", "pattern": "^(?!bad).*$"}, '"good"', '"badly"'),
        ({"type": "string", "pattern": "^(?!bad).*$"}, '"ba"', r'"\u0062ad"'),
        ({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, '"1.5"', '"+"'),
        ({"type": "string", "pattern": "foo"}, '"a foo b"', '"fo"'),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"type": "string", "format": "ipv4"}, '"1.2.3.4"', '"01.2.3.4"'),
        (
            {
                "type": "object",
                "patternProperties": {"x_": {"type": "integer"}},
                "additionalProperties": False,
            },
            '{"a x_": 1}',
            '{"x_a": "1"}',
        ),
        (DISCRIMINATED, '{"t": "a", "v": 1}', '{"t": "b", "v": 1}'),
        (POINTERS, '{"x": 1, "y": "a", "z": 1}', '{"x": "a"}'),
        (TUPLE, '[1, "a", null]', '["a"]'),
        ({**TUPLE, "additionalItems": False}, '[1, "a"]', '[1, "a", null]'),
        (
            {"type": "integer", "minimum": 0, "maximum": 18446744073709551615},
            "18446744073709551615",
            "18446744073709551616",
        ),
        ({"type": "number", "exclusiveMinimum": 0.1}, "0.11", "0.1"),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, "[2, 1]", "[1, 1]"),
        ({"type": "array", "contains": {"const": 1}, "maxContains": 1}, "[2, 1]", "[1, 1]"),
        ({"type": "object", "required": ["b"]}, '{"b": 1, "a": 2}', '{"a": 1}'),
        (TREE, '{"v": 1, "next": {"v": 2}}', '{"v": 1, "next": {}}'),
        (
            {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}},
            "null",
            '"ab"',
        ),
        ({"type": "string", "maxLength": 2147483647}, '"ab"', "1"),
    ],
)
def test_masks_allow_valid_texts_only(schema: Any, fits: str, fails: str) -> None:
    masks = ByteMasks(schema)
    assert masks.allow(fits)
    assert not masks.allow(fails)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, "uniqueItems at /properties/a"),
        ({"properties": {"a": {"pattern": r"\A"}}}, "pattern at /properties/a"),
        ({"items": {"format": "regex"}}, "format at /items"),
        ({"$ref": "http://a.b/c.json"}, r"\$ref"),
        ({"$ref": "#/$defs/x"}, r"\$ref"),
        ({"$ref": "#"}, r"\$ref"),
        ({"type": "objekt"}, "type"),
        ({"minLength": -1}, "minLength"),
        ({"minItems": 1e300}, "minItems"),
        ({"minimum": "1"}, "minimum"),
        ({"type": "string", "enum": [1]}, "schema allows no value"),
        ({"properties": {"a": 5}}, "schema"),
        ({"anyOf": {}}, "anyOf"),
        ({"pattern": "(" * 5000}, "schema|pattern"),
        ({"$schema": "http://localhost:1234/draft2020-12/no-validation.json"}, r"\$schema"),
        ({"$schema": "https://json-schema.org/draft/2031-01/schema"}, r"\$schema"),
        ({"$schema": "https://a.b/draft-07/schema#"}, r"\$schema"),
        ({"$schema": "draft-07"}, r"\$schema"),
        ({"$schema": 7}, r"\$schema"),
        ({"items": {"$id": "x", "$schema": "https://a.b/c"}}, r"\$schema at /items"),
    ],
)
def test_schemas_that_cannot_be_held_are_rejected_by_keyword(schema: Any, keyword: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=f"^(?:{keyword})"):
        compile_schema(schema)


@pytest.mark.parametrize("end", ["", "#"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("draft", "reads_tuples"),
    [
        ("draft-03/", True),
        ("draft-04/", True),
        ("draft-05/", True),
        ("draft-06/", True),
        ("draft-07/", True),
        ("draft/2019-09/", True),
        ("draft/2020-12/", False),
        ("", False),
    ],
)
def test_every_spelling_of_a_draft_is_known(
    draft: str, reads_tuples: bool, scheme: str, end: str
) -> None:
    schema = {"$schema": f"{scheme}://json-schema.org/{draft}schema{end}"}
    assert compile_schema(schema)
    if reads_tuples:
        assert compile_schema({**schema, **TUPLE})
    else:
        assert compile_schema({**schema, "prefixItems": TUPLE["items"]})


@pytest.mark.parametrize(
    "named",
    [
        "https://spec.openapis.org/oas/3.1/dialect/base",
        "http://iglucentral.com/schemas/com.snowplowanalytics.self-desc/schema/jsonschema/1-0-0#",
        None,
    ],
)
def test_meta_schemas_that_only_annotate_are_known(named: Any) -> None:
    assert compile_schema({"$schema": named, "type": "object"})


def test_property_named_like_the_meta_schema_is_no_meta_schema() -> None:
    schema = {"properties": {"$schema": {"type": "string"}}, "required": ["$schema"]}
    assert ByteMasks(schema).allow('{"$schema": "mine"}')


def test_keywords_that_cannot_be_held_are_left_out_one_by_one() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "uniqueItems": True, "maxItems": 3},
            "b": {"type": "string", "pattern": r"\A", "maxLength": 3},
        },
    }
    rest, left_out = enforceable(schema, CompileBudget())
    assert rest["properties"] == {
        "a": {"type": "array", "maxItems": 3},
        "b": {"type": "string", "maxLength": 3},
    }
    assert sorted(left_out) == ["properties.a.uniqueItems", "properties.b.pattern"]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "(a|b)*a(a|b){40}c", "minLength": 3},
        {"allOf": [{"anyOf": [{"minLength": i}, {"pattern": f"a{i}"}]} for i in range(40)]},
        {"oneOf": [{"properties": {f"p{i}": {"type": "null"}}} for i in range(60)]},
        {"properties": {f"p{i}": {"type": "null"} for i in range(3000)}, "maxProperties": 1500},
    ],
    ids=["states", "combinations", "branches", "counts"],
)
def test_excessive_schemas_are_decided_in_bounded_time(schema: Any) -> None:
    begun_s = time.thread_time()
    with pytest.raises(UnsupportedSchemaError):
        compile_schema(schema)
    assert time.thread_time() - begun_s < 20


def test_escapes_cannot_repeat_a_named_property_as_another() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
    masks = ByteMasks(schema)
    assert masks.allow(json.dumps({"a": 1, "b": None}))
    assert not masks.allow(r'{"a": 1, "\u0061": null}')


def test_many_excluded_names_are_written_quickly() -> None:
    names = [f"{i:03}_{chr(0x4E00 + i)}{'abcdefghijkl'[i % 12 :]}" for i in range(900)]
    schema = {
        "properties": {name: {"type": "object", "required": [name]} for name in names},
        "additionalProperties": {"type": "null"},
    }
    begun_s = time.thread_time()
    compile_schema(schema)
    assert time.thread_time() - begun_s < 4


def test_equal_subschemas_have_one_rule() -> None:
    def schema(size: int) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"a": {"type": "array", "items": {"maximum": 3}}}}
        return {"properties": {f"p{i}": dict(inner) for i in range(size)}}

    small, large = (compile_schema(schema(size)).count("\nr") for size in (2, 12))
    assert large - small == 2 * 10  # of the properties' names, none of their values

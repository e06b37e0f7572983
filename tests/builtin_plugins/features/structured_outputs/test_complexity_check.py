"""The complexity check finds exponential constraints in linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from builtin_plugins.features.structured_outputs.complexity_check import (
    find_blowup,
    remote_reference,
)
from builtin_plugins.grammar_backends.api import Constraint

STARS = "may be empty"
PARTS = "parts in a row"
RULE = "contains itself"
DEFINITIONS = "definitions that refer"


def doubling(count: int) -> str:
    parts: dict[str, Any] = {
        f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
        for i in range(count)
    }
    return json.dumps({"$defs": {**parts, f"d{count}": {"type": "null"}}, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(" * 10 + "a" + ")*" * 10, STARS),
        ("regex", "(" * 60 + "a" + ")*" * 60, STARS),
        ("regex", "(a*)*b", STARS),
        ("regex", "(?:a*|b){0,50}c", STARS),
        ("regex", "(x(a*?)?)+|(\\)|[)*]*)+", STARS),
        ("regex", "a?" * 8000, PARTS),
        ("regex", "a?" * 2000, PARTS),
        ("regex", "(a?b*){300}", STARS),
        ("regex", "(a?b?){300}", PARTS),
        ("regex", "([a-z]{3} ){1000}{1000}", "parts, with repeats expanded"),
        ("grammar", 'root ::= root root root | "a" | ""', RULE),
        ("grammar", 'root ::= x\nx ::= "b" | x x  # (', RULE),
        ("grammar", 'root ::= ("a"*)*', STARS),
        ("json", doubling(1000), DEFINITIONS),
        ("json", json.dumps({"properties": {"a": {"pattern": "(a*)*"}}}), STARS),
        ("json", json.dumps({"patternProperties": {"(a*)*": {}}}), STARS),
        ("structural_tag", json.dumps({"format": {"type": "regex", "pattern": "(a*)*"}}), STARS),
    ],
)
def test_exponential_constraints_are_found(kind: Any, text: str, message: str) -> None:
    assert message in (find_blowup(Constraint(kind, text)) or "")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", r"\d{3}-[a-z]{1,9}@x\.com"),
        ("regex", r"(\w+\s*)+"),
        ("regex", r"([a-z]+ ?)*b|(\*\))*"),
        ("regex", "([a-z]{3}[0-9]{2} ){12}"),
        ("regex", r'[^"\\]{0,5000}'),
        ("regex", "[]()*]*(?P<name>a?)"),
        ("regex", "a?" * 100),
        ("regex", "("),
        ("regex", "\\"),
        ("grammar", 'root ::= "(" root ")" | [0-9]'),
        ("grammar", 'root ::= root "+" root | [a-z]'),
        ("grammar", 'root ::= item*\nitem ::= "root root"? "a"'),
        ("grammar", "nonsense"),
        ("json", doubling(5)),
        (
            "json",
            json.dumps(
                {"$defs": {"t": {"properties": {"n": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"}
            ),
        ),
        ("choice", '["(a*)*"]'),
    ],
)
def test_long_or_deep_constraints_pass(kind: Any, text: str) -> None:
    assert find_blowup(Constraint(kind, text)) is None


@pytest.mark.parametrize(
    "piece", ["a", "(a)", "(a|", "[", "\\", "a{9}", "(?:", "*", "x ::= x\n", '"']
)
@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_complexity_check_takes_linear_time(kind: Any, piece: str) -> None:
    longest = piece * (60 if "(" in piece and ")" not in piece else 16_000 // len(piece))
    begun_s = time.thread_time()
    find_blowup(Constraint(kind, longest))
    assert time.thread_time() - begun_s < 2


@pytest.mark.parametrize("ref", ["http://a.b/c.json", "file:///etc/passwd", "other.json#/a"])
def test_remote_references_are_found(ref: str) -> None:
    assert remote_reference(json.dumps({"properties": {"a": {"items": {"$ref": ref}}}})) == ref
    assert remote_reference(json.dumps({"const": {"$ref": ref}, "$ref": "#/a"})) is None

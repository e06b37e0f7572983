"""Schemas that are made to explode are refused by keyword or limit, in bounded CPU time."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest

from builtin_plugins.grammar_backends.api import BudgetError, CompileBudget, Constraint, enforceable
from core.api import InvalidRequest

backend = pytest.importorskip("builtin_plugins.grammar_backends.llguidance.backend")

MAX_CPU_S: Final = 4.0
"""Of one refusal; the slowest takes a second."""


def characters(first: int, count: int) -> str:
    return "".join(chr(0x4E00 + first + i) for i in range(count))


def product(count: int, width: int) -> dict[str, Any]:
    def branch(i: int) -> list[dict[str, Any]]:
        names = [f"p{i}_{j}" for j in range(width)]
        return [{"properties": {name: {"const": 1}}, "required": [name]} for name in names]

    return {"type": "object", "allOf": [{"anyOf": branch(i)} for i in range(count)]}


def conditions(count: int) -> dict[str, Any]:
    parts = [
        {"if": {"properties": {f"a{i}": {"const": 1}}}, "then": {"required": [f"b{i}"]}}
        for i in range(count)
    ]
    return {"type": "object", "allOf": parts}


def strings(*patterns: str) -> dict[str, Any]:
    return {"type": "string", "allOf": [{"pattern": pattern} for pattern in patterns]}


REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "many items": ({"type": "array", "minItems": 10**9}, "minItems is not less than 100000"),
    "long text": ({"type": "string", "minLength": 10**9}, "minLength is not less than 100000"),
    "counted items": (
        {"allOf": [{"contains": {"const": i}, "minContains": 500} for i in range(3)]},
        "contains counts too many items",
    ),
    "distinct items": (
        {"items": {"enum": [*range(30)]}, "uniqueItems": True, "minItems": 20},
        "uniqueItems of more than 8 possible values",
    ),
    "bounded repeats": (strings("^a{1000000}$"), "pattern at /allOf/0 has a repetition"),
    "nested repeats": (strings("^(?=(((a{99}){99}){99}){99})"), "pattern"),
    "lookaheads": (
        strings("^(?=.*a.{30}$)(?=.*b.{30}$)"),
        "pattern needs .* more than 12000 states",
    ),
    "patterns": (strings(*(f"{c}.{{20}}{c}" for c in "abcdef")), "more than 12000 states"),
    "characters": (strings(f"^(?!{characters(0, 2000)}){characters(0, 2000)}"), "2000000 edges"),
    "names": (
        {"patternProperties": {f"{c}.{{12}}{c}": {"const": c} for c in "abcdef"}},
        "more than 12000 states",
    ),
    "alternatives": (product(8, 10), "schema .*has too many combinations of alternatives"),
    "conditions": (conditions(20), "schema .*has too many combinations of alternatives"),
    "remainders": ({"type": "integer", "multipleOf": 123_457}, "multipleOf has too many"),
    "properties": (
        {"type": "object", "minProperties": 10_000, "additionalProperties": {"type": "integer"}},
        "minProperties of properties with any names",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_exploding_schema_is_refused_by_name(name: str) -> None:
    schema, message = REFUSED[name]
    start_s = time.process_time()
    with pytest.raises(InvalidRequest, match=f"structured_outputs.json: .*{message}"):
        backend.LLGuidance.check(Constraint("json", json.dumps(schema)))
    assert time.process_time() - start_s < MAX_CPU_S


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"a": i, "b": [i]} for i in range(20_000)]},
        {"anyOf": [{"properties": {f"p{i}": {"minimum": i}}} for i in range(20_000)]},
        {"oneOf": [strings(f"^x{i}") for i in range(500)]},
    ],
    ids=["enum", "anyOf", "oneOf"],
)
def test_slow_schema_of_a_tool_ends_with_the_budget(schema: dict[str, Any]) -> None:
    start_s = time.thread_time()
    with pytest.raises(BudgetError, match=r"compile for over 0\.1 s"):
        enforceable({"properties": {"a": schema}}, CompileBudget(cpu_s=0.1))
    assert time.thread_time() - start_s < MAX_CPU_S

"""Constraints that are rejected before a backend sees them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builtin_plugins.grammar_backends.api import Constraint, constraint_of
from core import SamplingParams, StructuredOutputsParams
from core.errors import InvalidRequest
from core.types.structured import MAX_CHARS, MAX_DEPTH


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "structured_outputs: nothing is given; give exactly one of json"),
        (
            {"json": {}, "regex": "a"},
            "structured_outputs: json and regex are given; give exactly one",
        ),
        ({"json": "{"}, "structured_outputs.json: is not valid JSON"),
        ({"json": "[1]"}, r"structured_outputs.json: must be a JSON object, not \[1\]"),
        (
            {"json": nested(MAX_DEPTH + 1)},
            f"structured_outputs.json: is nested deeper than {MAX_DEPTH} levels",
        ),
        ({"json": "[" * 100_000}, "structured_outputs.json: is n"),
        (
            {"json": {"const": "x" * MAX_CHARS}},
            f"structured_outputs.json: has .* at most {MAX_CHARS}",
        ),
        ({"regex": ""}, "structured_outputs.regex: must be a text that is not empty"),
        (
            {"regex": "(" * 100},
            f"structured_outputs.regex: has more than {MAX_DEPTH} brackets open",
        ),
        (
            {"regex": "a" * 20_000},
            "structured_outputs.regex: has 20000 characters or more, at most 16384",
        ),
        ({"choice": []}, "structured_outputs.choice: must be a list of texts, at least one"),
        ({"choice": ["a"] * 5000}, "structured_outputs.choice: holds 5000 texts, at most 4096"),
        ({"json_object": 5}, "structured_outputs.json_object: must be true, not 5"),
    ],
)
def test_invalid_constraints_are_rejected_with_field_and_limit(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        StructuredOutputsParams(**given)


def test_constraint_survives_serialization() -> None:
    sent = SamplingParams(
        structured_outputs=StructuredOutputsParams(json={"type": "integer"}, backend="xgrammar")
    )
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams)
    assert back.structured_outputs == sent.structured_outputs


def test_backends_get_equivalent_text() -> None:
    assert constraint_of(StructuredOutputsParams(json={"b": 1, "a": "é"})) == Constraint(
        "json", '{"b": 1, "a": "é"}'
    )
    compact = StructuredOutputsParams(json_object=True, disable_any_whitespace=True)
    assert constraint_of(compact) == Constraint("json_object", any_whitespace=False)

"""Structural tags without free text hold with every backend that supports them."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.llguidance.backend import LLGuidance
from builtin_plugins.grammar_backends.xgrammar.backend import XGrammar
from core.api import InvalidRequest
from tests.builtin_plugins.grammar_backends.test_distributions import PRESENT

VOCABULARY = Vocabulary((*(bytes([i]) for i in range(256)), b""), (256,))
BACKENDS: dict[str, Any] = {"xgrammar": XGrammar, "llguidance": LLGuidance} | {
    module: getattr(import_module(f"{module}.backend"), name)
    for module, name in (("engine_outlines_core", "OutlinesCore"),)
    if module in PRESENT
}
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
CALL = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "<f>"},
        {"type": "json_schema", "json_schema": NUMBER},
        {"type": "const_string", "value": "</f>"},
    ],
}


def tag(form: Any) -> Constraint:
    return Constraint(
        "structural_tag",
        json.dumps({"type": "structural_tag", "format": form}),
        any_whitespace=False,
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_calls_between_tags_follow_their_schema(name: str) -> None:
    more = {
        "type": "star",
        "content": {"type": "sequence", "elements": [{"type": "const_string", "value": ";"}, CALL]},
    }
    constraint = tag({"type": "sequence", "elements": [CALL, more]})
    BACKENDS[name].check(constraint)
    grammar = BACKENDS[name](VOCABULARY).compile(constraint)
    spaced = {"engine_outlines_core": ""}.get(name, " ")
    one = f'<f>{{"n":{spaced}12}}</f>'
    for text in (one,) if name == "engine_outlines_core" else (one, f"{one};{one}"):
        assert grammar.start().replay([*text.encode(), 256])
    for text in ("", "<f>{}</f>", f"{one};", '<f>{"n": "x"}</f>'):
        assert not grammar.start().replay([*text.encode(), 256])


@pytest.mark.parametrize("name", BACKENDS)
def test_unsupported_schemas_in_tags_are_rejected(name: str) -> None:
    form = {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(InvalidRequest, match=r"structured_outputs.structural_tag: .*uniqueItems"):
        BACKENDS[name].check(tag(form))


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"xgrammar"}))
def test_free_text_between_tags_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="any_text"):
        BACKENDS[name].check(tag({"type": "any_text"}))

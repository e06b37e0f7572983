"""Valid texts are followed however much work that takes, also without masks, as in a replay."""

from __future__ import annotations

import json

import pytest

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from builtin_plugins.grammar_backends.llguidance.backend import LLGuidance

END = 256
VOCABULARY = Vocabulary((*(bytes((i,)) for i in range(256)), b""), (END,))
WORDS = {"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 5000}


@pytest.mark.slow
def test_long_text_is_replayed_without_masks() -> None:
    constraint = Constraint("json", json.dumps(WORDS))
    LLGuidance.check(constraint)
    state = LLGuidance(VOCABULARY).compile(constraint).start()
    text = json.dumps(
        "The brain is to process and interpret, to move, to manage functions. " * 3 + "."
    )
    assert state.replay([*text.encode(), END])


def test_many_open_alternatives_are_followed() -> None:
    names = [f"k{i}" for i in range(8)]
    schema = {
        "anyOf": [
            {"properties": {name: {"const": i} for name in names}, "additionalProperties": False}
            for i in range(400)
        ]
    }
    state = LLGuidance(VOCABULARY).compile(Constraint("json", json.dumps(schema))).start()
    assert state.replay([*b'{"k1": 399, "k7": 399}', END])

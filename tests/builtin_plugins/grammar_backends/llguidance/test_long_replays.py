"""Texts are followed without masks, as after a preemption, however much work the lexer has."""

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

"""Constraints that turn out to be too complex in the middle of an output are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from core.api import InvalidRequest

VOCABULARY = Vocabulary((b"", *(bytes([code]) for code in range(32, 127))), (0,))
A = VOCABULARY.tokens.index(b"a")


def test_regex_beyond_the_lexer_limit_is_refused_with_the_first_line_of_the_reason() -> None:
    backend = pytest.importorskip("builtin_plugins.grammar_backends.llguidance.backend")
    constraint = Constraint("regex", "aaa" + "a?" * 1420)
    backend.LLGuidance.check(constraint)
    state = backend.LLGuidance(VOCABULARY).compile(constraint).start()
    mask = np.zeros(3, np.int32)
    for _ in range(3):
        state.fill(mask)
        state.accept(A)
    with pytest.raises(InvalidRequest, match=r"cannot be held: lexer error: .*\.$") as refused:
        state.fill(mask)
    assert "\n" not in str(refused.value)

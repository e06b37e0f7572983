"""A grammar that exceeds a limit of the library in the middle of an output is refused by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from core.api import InvalidRequest

llguidance = pytest.importorskip("llguidance")
backend = pytest.importorskip("builtin_plugins.grammar_backends.llguidance.backend")

VOCABULARY = Vocabulary((b"", *(bytes([code]) for code in range(32, 127))), (0,))
A = VOCABULARY.tokens.index(b"a")
REGEX = Constraint("regex", "[ab]*a[ab]{40}")
AMBIGUOUS = Constraint("grammar", 'start: a\na: a a | a a a | "a"')


@pytest.mark.parametrize(
    ("constraint", "limits", "reason"),
    [
        (REGEX, {"max_lexer_states": 60}, "lexer error: too many states"),
        (
            REGEX,
            {"initial_lexer_fuel": 30_000, "step_lexer_fuel": 300},
            "lexer error: too many expressions constructed",
        ),
        (AMBIGUOUS, {"step_max_items": 100}, "parser error: Too many items"),
        (AMBIGUOUS, {"max_items_in_row": 40}, ".*Current row has 41 items"),
    ],
    ids=["states", "fuel", "items", "row"],
)
def test_limit_within_an_output_is_refused_with_the_librarys_reason(
    constraint: Constraint, limits: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_FOLLOWING", llguidance.LLParserLimits(**limits))
    backend.LLGuidance.check(constraint)
    state = backend.LLGuidance(VOCABULARY).compile(constraint).start()
    with pytest.raises(InvalidRequest, match=f"cannot be held: {reason}") as refused:
        write(state, 300)
    assert "\n" not in str(refused.value)


def write(state: Any, length: int) -> None:
    """Write a text of `a`, which is valid as long as no limit is met."""
    mask = np.zeros(3, np.int32)
    for _ in range(length):
        state.fill(mask)
        assert mask[A // 32] >> A % 32 & 1, "the error is no empty mask"
        assert state.accept(A), "the error is no forbidden token"

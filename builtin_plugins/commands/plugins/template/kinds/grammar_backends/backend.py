"""A grammar backend: supports lists of choices and rejects every other constraint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary
from core.api import InvalidRequest


class Acme:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Reject constraints that cannot be enforced exactly; the engine tries the next backend."""
        if constraint.kind != "choice":
            raise InvalidRequest(
                f"structured_outputs.{constraint.kind}", "acme supports lists of choices only."
            )

    def compile(self, constraint: Constraint) -> Choices:
        """Return the compiled grammar."""
        return Choices([text.encode() for text in json.loads(constraint.text)], self._vocabulary)


class Choices:
    """A compiled grammar, shared by its states."""

    def __init__(self, texts: list[bytes], vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.memory_bytes = sum(map(len, texts))

    def start(self) -> State:
        """Return a state at the start of an output."""
        return State(self)


class State:
    """Grammar state of one output."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._tokens: list[int] = []

    def accept(self, token: int) -> bool:
        """Accept a token; return False for a token that the grammar forbids."""
        allowed = self._allows(token)
        if allowed:
            self._tokens.append(token)
        return allowed

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        del self._tokens[len(self._tokens) - k :]

    def fill(self, mask: Any) -> None:
        """Set bit i % 32 of word i // 32 for every allowed token i."""
        mask[:] = 0
        for token in filter(self._allows, range(len(self._choices.vocabulary.tokens))):
            mask.view("uint32")[token // 32] |= 1 << token % 32

    def is_done(self) -> bool:
        """Return whether an end token was accepted."""
        return any(token in self._choices.vocabulary.end_ids for token in self._tokens)

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens of an output so far."""
        return all(self.accept(token) for token in tokens)

    def _allows(self, token: int) -> bool:
        words = self._choices.vocabulary.tokens
        output = b"".join(words[t] for t in self._tokens)
        if token in self._choices.vocabulary.end_ids:
            return self.is_done() or output in self._choices.texts
        if not words[token] or self.is_done():
            return False
        return any(text.startswith(output + words[token]) for text in self._choices.texts)

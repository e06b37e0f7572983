"""A grammar backend: serves lists of choices, and refuses every other constraint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from core.api import Constraint, InvalidRequest, Vocabulary


class Acme:
    """Compiles constraints for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Refuse what cannot be held exactly; the engine then asks the next backend."""
        if constraint.kind != "choice":
            raise InvalidRequest(
                f"structured_outputs.{constraint.kind}", "acme serves lists of choices only."
            )

    def compile(self, constraint: Constraint) -> Choices:
        """Return the grammar."""
        return Choices([text.encode() for text in json.loads(constraint.text)], self._vocabulary)


class Choices:
    """A compiled constraint; states share it."""

    def __init__(self, texts: list[bytes], vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.memory_bytes = sum(map(len, texts))

    def start(self) -> State:
        """Return a state at the beginning of an output."""
        return State(self)


class State:
    """What one output has written so far: the engine asks for masks, and tells which tokens were
    taken.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._tokens: list[int] = []

    def accept(self, token: int) -> bool:
        """Go on by a token, if it may come."""
        fits = self._fits(token)
        if fits:
            self._tokens.append(token)
        return fits

    def rollback(self, k: int) -> None:
        """Go back by `k` tokens."""
        del self._tokens[len(self._tokens) - k :]

    def fill(self, mask: Any) -> None:
        """Set bit i % 32 of word i // 32 for every token i that may come next."""
        mask[:] = 0
        for token in filter(self._fits, range(len(self._choices.vocabulary.tokens))):
            mask.view("uint32")[token // 32] |= 1 << token % 32

    def is_done(self) -> bool:
        """Say whether an end token was accepted."""
        return any(token in self._choices.vocabulary.end_ids for token in self._tokens)

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept the tokens of an output so far."""
        return all(self.accept(token) for token in tokens)

    def _fits(self, token: int) -> bool:
        words = self._choices.vocabulary.tokens
        written = b"".join(words[t] for t in self._tokens)
        if token in self._choices.vocabulary.end_ids:
            return self.is_done() or written in self._choices.texts
        if not words[token] or self.is_done():
            return False
        return any(text.startswith(written + words[token]) for text in self._choices.texts)

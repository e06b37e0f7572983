"""Grammar backend on lm-format-enforcer: compiles nothing, computes every mask on demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lmformatenforcer import (
    JsonSchemaParser,
    RegexParser,
    StringParser,
    TokenEnforcer,
    TokenEnforcerTokenizerData,
    UnionParser,
)
from lmformatenforcer.characterlevelparser import CharacterLevelParserConfig

from builtin_plugins.grammar_backends.api import Constraint, Vocabulary, unsupported_keyword
from core.api import InvalidRequest

Mask = npt.NDArray[np.int32]


class FormatEnforcer:
    """Compiles constraints for one vocabulary; tokens with partial characters are never allowed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        words = [(token, _text(word), True) for token, word in enumerate(vocabulary.tokens)]
        self._data = TokenEnforcerTokenizerData(
            [word for word in words if word[1]],
            lambda tokens: "".join(_text(vocabulary.tokens[token]) for token in tokens),
            list(vocabulary.end_ids),
            False,
            len(vocabulary.tokens),
        )

    @staticmethod
    def check(constraint: Constraint) -> None:
        """Parse the constraint with the library."""
        field = f"structured_outputs.{constraint.kind}"
        if constraint.kind in ("grammar", "structural_tag"):
            raise InvalidRequest(field, "is not supported by lm-format-enforcer.")
        if not constraint.any_whitespace or constraint.whitespace_pattern is not None:
            raise InvalidRequest(
                field, "lm-format-enforcer does not support whitespace options. Remove them."
            )
        if (
            constraint.kind == "json"
            and (key := unsupported_keyword(json.loads(constraint.text))) is not None
        ):
            raise InvalidRequest(field, f"lm-format-enforcer does not support {key}. Remove it.")
        try:
            _parser(constraint).get_allowed_characters()
        except Exception as error:
            raise InvalidRequest(
                field, f"is not supported by lm-format-enforcer: {str(error)[:500]}"
            ) from error

    def compile(self, constraint: Constraint) -> Compiled:
        """Return the constraint for the vocabulary."""
        return Compiled(constraint, self._data, self._vocabulary)


class Compiled:
    """A constraint; every output has an enforcer of its own, which caches its states."""

    def __init__(self, constraint: Constraint, data: Any, vocabulary: Vocabulary) -> None:
        self.memory_bytes = len(constraint.text) + 1
        self.vocabulary = vocabulary
        self._constraint = constraint
        self._data = data

    def start(self) -> State:
        """Return the initial state."""
        return State(TokenEnforcer(self._data, _parser(self._constraint)), self.vocabulary)


class State:
    """The tokens of one output and the tokens allowed after them."""

    def __init__(self, enforcer: Any, vocabulary: Vocabulary) -> None:
        self._enforcer = enforcer
        self._ends = frozenset(vocabulary.end_ids)
        self._tokens: list[int] = []
        self._num_ends = 0
        self._allowed = [self._look()]
        """Allowed tokens before the first token and after each one."""

    def _look(self) -> frozenset[int]:
        return frozenset(self._enforcer.get_allowed_tokens(self._tokens).allowed_tokens)

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether it is allowed."""
        if token not in (self._ends if self._num_ends else self._allowed[-1]):
            return False
        if token in self._ends:
            self._num_ends += 1
        else:
            self._tokens.append(token)
            self._allowed.append(self._look())
        return True

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        ends = min(k, self._num_ends)
        self._num_ends -= ends
        if k > ends:
            del self._tokens[-(k - ends) :], self._allowed[-(k - ends) :]

    def fill(self, mask: Mask) -> None:
        """Write the mask of the next token."""
        mask[:] = 0
        ids = np.asarray([*(self._ends if self._num_ends else self._allowed[-1])], dtype=np.int64)
        bits = np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32))
        np.bitwise_or.at(mask.view(np.uint32), ids // 32, bits)

    def is_done(self) -> bool:
        """Return whether the end was accepted."""
        return self._num_ends > 0

    def replay(self, tokens: Sequence[int]) -> bool:
        """Accept several tokens; return whether all are allowed."""
        return all(self.accept(token) for token in tokens)


def _text(token: bytes) -> str:
    """Return a token as text; empty for a partial character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return ""


def _parser(constraint: Constraint) -> Any:
    if constraint.kind == "regex":
        return RegexParser(constraint.text)
    if constraint.kind == "choice":
        return UnionParser([StringParser(choice) for choice in json.loads(constraint.text)])
    schema = None if constraint.kind == "json_object" else json.loads(constraint.text)
    return JsonSchemaParser(schema, CharacterLevelParserConfig())

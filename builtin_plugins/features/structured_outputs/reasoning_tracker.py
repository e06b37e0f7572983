"""Finds where the reasoning of an output ends, token by token: there its constraint starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from builtin_plugins.grammar_backends.api import Vocabulary
from builtin_plugins.output_parsers.api import ReasoningBounds

if TYPE_CHECKING:
    from core.api.serving import Tokenizer

Spellings = tuple[tuple[int, ...], ...]
TrackerState = tuple[bool, bool, bool, Spellings, bytes]
NO_REASONING: Final = ReasoningBounds(ends=(), at_start="outside")
_SPECIAL: Final = b"\xff"
"""Byte around the text of a special token; no other text has it."""


class TokenTexts:
    """The text of each token; a special token differs from its spelling in other tokens."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._special = {token: tokenizer.decode([token]) for token in tokenizer.special_ids}
        self._tokenizer = tokenizer

    def __getitem__(self, token: int) -> bytes:
        if token in self._special:
            return _SPECIAL + self._special[token].encode() + _SPECIAL
        return self._tokens[token] if token < len(self._tokens) else b""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def of(self, text: str) -> bytes:
        """Return a text as its tokens spell it."""
        names = sorted({name for name in self._special.values() if name and name in text}, key=len)
        parts = re.split(f"({'|'.join(map(re.escape, names[::-1]))})", text) if names else [text]
        return b"".join(
            _SPECIAL + part.encode() + _SPECIAL if i % 2 else part.encode()
            for i, part in enumerate(parts)
        )


class ReasoningTracker:
    """The position of one output: before, inside or after its reasoning.

    Where reasoning is optional the first tokens decide: a start marker starts reasoning, any other
    text skips it. A started marker that is no answer must be completed, or the output would match
    no format.
    """

    def __init__(self, bounds: ReasoningBounds, texts: TokenTexts) -> None:
        self.is_over = not bounds.ends or bounds.at_start == "outside"
        self.may_begin = not self.is_over and bounds.at_start == "optional"
        """The next token decides whether there is reasoning."""
        self.is_call = False
        """A call has started instead of the answer: no constraint applies."""
        self._texts = texts
        self._calls = tuple(map(texts.of, bounds.calls))
        self._ends = tuple(map(texts.of, bounds.ends))
        self._longest = max(map(len, (*self._ends, *self._calls)), default=0)
        self._tail = b""
        self._opening: Spellings = ()
        if self.may_begin:
            self._opening = tuple(map(texts.encode, bounds.starts))

    @property
    def is_opening(self) -> bool:
        """The next token starts, or continues, a start marker, unless the answer has begun."""
        return bool(self._opening)

    @property
    def marker_ids(self) -> Sequence[int]:
        """Tokens that start, or continue, a start marker."""
        return tuple({rest[0] for rest in self._opening})

    @property
    def state(self) -> TrackerState:
        """The state to pass to `restore`."""
        return self.is_over, self.is_call, self.may_begin, self._opening, self._tail

    def restore(self, state: TrackerState) -> None:
        """Return to an earlier state."""
        self.is_over, self.is_call, self.may_begin, self._opening, self._tail = state

    def advance(self, token: int, *, may_answer: bool = False) -> None:
        """Read the next token. End markers may be spelled in any number of tokens.

        `may_answer`: the text so far may be an answer. Raises `ValueError` for a token that does
        not continue the started start marker then.
        """
        if self._opening:
            begun = tuple(rest[1:] for rest in self._opening if rest[0] == token)
            if not (begun or self.may_begin or may_answer):
                raise ValueError(f"token {token} does not continue the started reasoning marker")
            self.is_over = not begun
            self.may_begin = False
            self._opening = begun if begun and all(begun) else ()
            return
        if self.is_call:
            return
        self._tail += self._texts[token]
        self.is_call = any(call in self._tail for call in self._calls)
        self.is_over = any(end in self._tail for end in self._ends)
        self._tail = self._tail[-self._longest :]

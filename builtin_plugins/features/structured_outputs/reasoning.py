"""Follows the reasoning in a row's tokens: where it ends, or is left out, the constraint takes
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Vocabulary

if TYPE_CHECKING:
    from core.api import Tokenizer

Spellings = tuple[tuple[int, ...], ...]
Place = tuple[bool, bool, Spellings, bytes]


class Reasoning:
    """Over at once without end markers, or where the prompt ends with one (thinking is switched
    off).

    With `starts`, the first token decides: one that begins a start marker begins reasoning, any
    other leaves it out. A marker that was begun must be spelt to its end: who begins one and says
    something else would be outside of every form.
    """

    def __init__(
        self,
        starts: Sequence[str],
        ends: Sequence[str],
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        prompt_end: Sequence[int],
    ) -> None:
        prompt = tokenizer.decode(prompt_end).rstrip()
        self.is_over = not ends or prompt.endswith(tuple(ends))
        self._tokens = vocabulary.tokens
        self._ids = frozenset(ids[0] for ids in _encoded(ends, tokenizer) if len(ids) == 1)
        self._texts = tuple(end.encode() for end in ends)
        self._longest = max(map(len, self._texts), default=0)
        self._tail = b""
        is_open = not starts or prompt.endswith(tuple(starts))
        self.may_begin = not (self.is_over or is_open)
        """The next token decides."""
        self._opening: Spellings = (
            tuple(map(tuple, _encoded(starts, tokenizer))) if self.may_begin else ()
        )

    @property
    def marker_ids(self) -> tuple[int, ...]:
        """Tokens that would begin a start marker now, or must go on with the one that was begun."""
        return tuple({rest[0] for rest in self._opening})

    @property
    def place(self) -> Place:
        """Where it is: what `go_back` takes."""
        return self.is_over, self.may_begin, self._opening, self._tail

    def go_back(self, place: Place) -> None:
        """Be where it was."""
        self.is_over, self.may_begin, self._opening, self._tail = place

    def take(self, token: int) -> None:
        """Look at the next token; an end marker is found by its id, or spelt in any number of
        tokens.

        Raises `ValueError` for one that cannot go on with the start marker that was begun.
        """
        if self._opening:
            begun = tuple(rest[1:] for rest in self._opening if rest[0] == token)
            if not (begun or self.may_begin):
                raise ValueError(
                    f"token {token} does not go on with the marker of thoughts that was begun"
                )
            self.is_over = not begun
            self.may_begin = False
            self._opening = begun if all(begun) else ()
            return
        text = self._tokens[token] if token < len(self._tokens) else b""
        self._tail += text
        self.is_over = token in self._ids or any(end in self._tail for end in self._texts)
        self._tail = self._tail[-self._longest :]


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

"""State of one output in a grammar process: grammar position, reasoning, and the next mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from builtin_plugins.grammar_backends.api import GrammarState, Vocabulary

if TYPE_CHECKING:
    from core.api.serving import Tokenizer

Mask = npt.NDArray[np.int32]
Spellings = tuple[tuple[int, ...], ...]
TrackerState = tuple[bool, bool, Spellings, bytes]
_SURROGATE_LEAD = b"\xed"


class ReasoningTracker:
    """Finds where reasoning ends in a row's tokens: there the constraint starts.

    Reasoning is over at once without end markers, or if the prompt ends with one (thinking is off).
    With `starts`, the first token decides: one that starts a start marker starts reasoning, any
    other skips it. A started marker must be completed, or the output would match no format.
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
        """The next token decides whether there is reasoning."""
        self._opening: Spellings = ()
        if self.may_begin:
            self._opening = tuple(map(tuple, _encoded(starts, tokenizer)))

    @property
    def marker_ids(self) -> tuple[int, ...]:
        """Tokens that start, or continue, a start marker."""
        return tuple({rest[0] for rest in self._opening})

    @property
    def state(self) -> TrackerState:
        """The state to pass to `restore`."""
        return self.is_over, self.may_begin, self._opening, self._tail

    def restore(self, state: TrackerState) -> None:
        """Return to an earlier state."""
        self.is_over, self.may_begin, self._opening, self._tail = state

    def advance(self, token: int) -> None:
        """Read the next token. End markers are found by id or spelled in any number of tokens.

        Raises `ValueError` for a token that does not continue the started start marker.
        """
        if self._opening:
            begun = tuple(rest[1:] for rest in self._opening if rest[0] == token)
            if not (begun or self.may_begin):
                raise ValueError(f"token {token} does not continue the started reasoning marker")
            self.is_over = not begun
            self.may_begin = False
            self._opening = begun if all(begun) else ()
            return
        text = self._tokens[token] if token < len(self._tokens) else b""
        self._tail += text
        self.is_over = token in self._ids or any(end in self._tail for end in self._texts)
        self._tail = self._tail[-self._longest :]


class TokenMasks:
    """Masks that depend on the vocabulary only."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self.ends = self.of(vocabulary.end_ids)
        # Backends treat surrogates as characters. UTF-8 has none: 0xED continues with 0x80-0x9F.
        leads = [i for i, token in enumerate(self._tokens) if token.endswith(_SURROGATE_LEAD)]
        tails = [i for i, token in enumerate(self._tokens) if b"\xa0" <= token[:1] <= b"\xbf"]
        self.leads = frozenset(leads)
        self.no_surrogate = ~self.of(tails)

    def of(self, tokens: Sequence[int]) -> Mask:
        """Return a mask with the bits of some tokens set."""
        mask = np.zeros(-(-len(self._tokens) // 32), dtype=np.uint32)
        for token in tokens:
            if token < len(self._tokens):
                mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)


class GrammarRow:
    """One output. Depends on its constraint and tokens only, so it can be rebuilt at any time."""

    def __init__(
        self,
        state: GrammarState,
        stops: Sequence[int],
        reasoning: ReasoningTracker,
        tokens: TokenMasks,
    ) -> None:
        self._state = state
        self._reasoning = reasoning
        self._tokens = tokens
        self._ends = tokens.ends
        self._stops = tokens.of(stops)
        self._first = tokens.of(reasoning.marker_ids)
        self._has_own_stops = bool((self._stops & ~self._ends).any())
        self._leads = False
        self._trail: list[tuple[TrackerState | None, bool, bool]] = []
        """Per token of the last step: earlier tracker state, earlier lead flag, used by grammar."""
        self.mask: Mask = np.zeros_like(self._ends)
        """Tokens that are allowed next."""
        self.error: Exception | None = None
        """Failure while advancing; the row cannot continue."""

    def replay(self, tokens: Sequence[int]) -> None:
        """Read the output so far and make the first mask."""
        for token in tokens:
            self._advance(token)
        self._trail.clear()
        self._fill(self.mask)

    def advance(self, tokens: Sequence[int]) -> None:
        """Read a step's tokens and make the next mask. Stores a failure in `error`."""
        self._trail.clear()
        try:
            for token in tokens:
                self._advance(token)
            self._fill(self.mask)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            self.error = error

    def settle(self, back: int, tokens: Sequence[int]) -> None:
        """Correct the last step's accepted tokens: roll back `back` of them, or read more."""
        if back:
            self._undo(back)
            self._fill(self.mask)
        elif tokens:
            self.advance(tokens)

    def points(self, draft_tokens: Sequence[int]) -> list[Mask]:
        """Return the mask of the next token, then the mask after each draft token.

        After a draft token that its mask forbids everything is allowed, since no token from there
        is accepted. Raises the failure of an earlier advance, or of this one.
        """
        if self.error is not None:
            raise self.error
        if not draft_tokens:
            return [self.mask]
        masks = [self.mask]
        for token in draft_tokens:
            if not _has(masks[-1], token):
                break
            self._advance(token)
            masks.append(np.zeros_like(self.mask))
            self._fill(masks[-1])
        self._undo(len(masks) - 1)
        anything = np.full_like(self.mask, -1)
        return masks + [anything] * (1 + len(draft_tokens) - len(masks))

    def _advance(self, token: int) -> None:
        reasoning = self._reasoning
        led = self._leads
        self._leads = token in self._tokens.leads
        state = None
        is_of_grammar = True
        if not reasoning.is_over:
            state = reasoning.state
            may_begin = reasoning.may_begin
            reasoning.advance(token)
            is_of_grammar = may_begin and reasoning.is_over
        is_taken = is_of_grammar and self._state.accept(token)
        # The request's own stop tokens are outside of the grammar; the request ends with them.
        if is_of_grammar and not is_taken and not _has(self._stops, token):
            raise ValueError(f"the grammar rejects token {token}, which its own mask allowed")
        self._trail.append((state, led, is_taken))

    def _undo(self, count: int) -> None:
        num_taken = 0
        for _ in range(count):
            state, self._leads, is_taken = self._trail.pop()
            if state is not None:
                self._reasoning.restore(state)
            num_taken += is_taken
        if num_taken:
            self._state.rollback(num_taken)

    def _fill(self, mask: Mask) -> None:
        reasoning = self._reasoning
        if not (reasoning.is_over or reasoning.may_begin):
            # An output that ends within its reasoning has no constrained part: exclude the ends.
            marker = reasoning.marker_ids
            mask[:] = self._tokens.of(marker) if marker else ~self._ends
            return
        self._state.fill(mask)
        if self._leads:
            mask &= self._tokens.no_surrogate
        if self._has_own_stops and (mask & self._ends).any():
            mask |= self._stops
        if reasoning.may_begin:
            mask |= self._first


def _has(mask: Mask, token: int) -> bool:
    return 0 <= token < 32 * len(mask) and bool(mask[token // 32] >> token % 32 & 1)


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

"""State of one output in a grammar process: grammar position, reasoning, and the next mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from builtin_plugins.features.structured_outputs.reasoning_tracker import (
    ReasoningTracker,
    TrackerState,
)
from builtin_plugins.grammar_backends.api import GrammarState, Vocabulary

Mask = npt.NDArray[np.int32]
_SURROGATE_LEAD = b"\xed"


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


@dataclass(slots=True)
class _Token:
    """What one token changed, to undo it."""

    reasoning: TrackerState | None
    """Earlier state of the tracker; None after reasoning."""
    leads: bool
    """Earlier lead flag."""
    opened: tuple[int, ...] | None
    """Earlier tokens of an opening start marker."""
    is_taken: bool = False
    """The grammar has taken it."""
    dropped: tuple[int, ...] = ()
    """Tokens before it that the grammar had taken and that turned out to be a start marker."""


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
        self._has_own_stops = bool((self._stops & ~self._ends).any())
        self._leads = False
        self._opened: tuple[int, ...] | None = ()
        """Tokens of an opening start marker that the grammar has taken; None if it refused one."""
        self._trail: list[_Token] = []
        """The tokens of the last step."""
        self.mask: Mask = np.zeros_like(self._ends)
        """Tokens that are allowed next."""
        self.optional: list[int] = []
        """Tokens of the mask that start reasoning, which the constraint does not allow.

        They are for a model that prefers them to every other token: another would escape into
        reasoning because its own answer is masked.
        """
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
        optional = self.optional
        for token in draft_tokens:
            if not _has(masks[-1], token):
                break
            self._advance(token)
            masks.append(np.zeros_like(self.mask))
            self._fill(masks[-1])
        self._undo(len(masks) - 1)
        self.optional = optional
        anything = np.full_like(self.mask, -1)
        return masks + [anything] * (1 + len(draft_tokens) - len(masks))

    def _advance(self, token: int) -> None:
        reasoning = self._reasoning
        if reasoning.is_over:
            step = _Token(None, self._leads, None, is_taken=self._accept(token))
        else:
            step = self._advance_reasoning(token)
        self._leads = token in self._tokens.leads
        self._trail.append(step)

    def _accept(self, token: int) -> bool:
        """Return whether the grammar takes a token.

        The request's own stop tokens are outside of the grammar; the request ends with them.
        """
        is_taken = self._state.accept(token)
        if not is_taken and not _has(self._stops, token):
            raise ValueError(f"the grammar rejects token {token}, which its own mask allowed")
        return is_taken

    def _advance_reasoning(self, token: int) -> _Token:
        """Read a token before the answer. While a start marker opens, it may be an answer, too."""
        reasoning = self._reasoning
        step = _Token(reasoning.state, self._leads, self._opened)
        if not reasoning.is_opening:
            reasoning.advance(token)
            return step
        opened = self._opened
        is_taken = opened is not None and self._state.accept(token)
        reasoning.advance(token, may_answer=is_taken)
        if reasoning.is_over:
            step.is_taken = is_taken
            if not is_taken and not _has(self._stops, token):
                raise ValueError(f"the grammar rejects token {token}, which its own mask allowed")
        elif is_taken and reasoning.is_opening:
            step.is_taken = True
            self._opened = (*(opened or ()), token)
        else:  # reasoning: the grammar has seen nothing of it
            step.dropped = opened or ()
            self._opened = None
            if is_taken or step.dropped:
                self._state.rollback(len(step.dropped) + is_taken)
        return step

    def _undo(self, count: int) -> None:
        num_taken = 0
        for _ in range(count):
            step = self._trail.pop()
            self._leads = step.leads
            if step.reasoning is not None:
                self._reasoning.restore(step.reasoning)
                self._opened = step.opened
            num_taken += step.is_taken
            if step.dropped:
                if num_taken:
                    self._state.rollback(num_taken)
                num_taken = 0
                for token in step.dropped:
                    self._state.accept(token)
        if num_taken:
            self._state.rollback(num_taken)

    def _fill(self, mask: Mask) -> None:
        reasoning = self._reasoning
        self.optional = []
        if reasoning.is_call:
            mask[:] = -1
            return
        if reasoning.is_opening and self._opened is None:
            mask[:] = self._tokens.of(reasoning.marker_ids)
            return
        if not (reasoning.is_over or reasoning.is_opening):
            # An output that ends within its reasoning has no constrained part: exclude the ends.
            mask[:] = ~self._ends
            return
        self._state.fill(mask)
        if self._leads:
            mask &= self._tokens.no_surrogate
        if self._has_own_stops and (mask & self._ends).any():
            mask |= self._stops
        if reasoning.is_opening:
            if reasoning.may_begin:
                self.optional = [i for i in reasoning.marker_ids if not _has(mask, i)]
            mask |= self._tokens.of(reasoning.marker_ids)


def _has(mask: Mask, token: int) -> bool:
    return 0 <= token < 32 * len(mask) and bool(mask[token // 32] >> token % 32 & 1)

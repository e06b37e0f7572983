"""What a keeper knows of each output: its grammar state, whether it still reasons, and its next
mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from builtin_plugins.features.structured_outputs.reasoning import Place, Reasoning
from core.api import GrammarState, Vocabulary

Mask = npt.NDArray[np.int32]
_SURROGATE_LEAD = b"\xed"


class TokenMasks:
    """Masks that depend on the vocabulary alone."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self.ends = self.of(vocabulary.end_ids)
        # Backends count surrogates as characters; text that is encoded has none, so 0xED goes on
        # with 0x80 to 0x9F.
        self.leads = frozenset(
            i for i, token in enumerate(self._tokens) if token.endswith(_SURROGATE_LEAD)
        )
        self.no_surrogate = ~self.of(
            [i for i, token in enumerate(self._tokens) if b"\xa0" <= token[:1] <= b"\xbf"]
        )

    def of(self, tokens: Sequence[int]) -> Mask:
        """Return a mask with the bits of these tokens set."""
        mask = np.zeros(-(-len(self._tokens) // 32), dtype=np.uint32)
        for token in tokens:
            if token < len(self._tokens):
                mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)


class Row:
    """One request.

    Follows from its constraint and its tokens alone, so that it can be made anew at any time.
    """

    def __init__(
        self, state: GrammarState, stops: Sequence[int], reasoning: Reasoning, tokens: TokenMasks
    ) -> None:
        self._state = state
        self._reasoning = reasoning
        self._tokens = tokens
        self._ends = tokens.ends
        self._stops = tokens.of(stops)
        self._first = tokens.of(reasoning.marker_ids)
        self._has_own_stops = bool((self._stops & ~self._ends).any())
        self._leads = False
        self._trail: list[tuple[Place | None, bool, bool]] = []
        """What each token of the last step met, so that it can be taken back; no place where
        reasoning was over.
        """
        self.mask: Mask = np.zeros_like(self._ends)
        """Which tokens may come next."""
        self.error: Exception | None = None
        """What went wrong while it advanced: it cannot go on."""

    def replay(self, tokens: Sequence[int]) -> None:
        """Take in the output so far and make the first mask."""
        for token in tokens:
            self._take(token)
        self._trail.clear()
        self._fill(self.mask)

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in what a step has added to the output and make the mask of the next token.

        Raises nothing.
        """
        self._trail.clear()
        try:
            for token in tokens:
                self._take(token)
            self._fill(self.mask)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything; whoever finds it fails the request
            self.error = error

    def settle(self, back: int, tokens: Sequence[int]) -> None:
        """Take back the last tokens of the last step, or take in more, now that it is known how
        many of them were kept.
        """
        if back:
            self._go_back(back)
            self._fill(self.mask)
        elif tokens:
            self.advance(tokens)

    def points(self, guesses: Sequence[int]) -> list[Mask]:
        """Return the mask of the next token, and those of the tokens behind each guess, were it
        right.

        Behind a guess that may not come anything may: none of these tokens will be kept, whatever
        they are. Raises what went wrong here or while it advanced.
        """
        if self.error is not None:
            raise self.error
        if not guesses:
            return [self.mask]
        masks = [self.mask]
        for guess in guesses:
            if not _has(masks[-1], guess):
                break
            self._take(guess)
            masks.append(np.zeros_like(self.mask))
            self._fill(masks[-1])
        self._go_back(len(masks) - 1)
        anything = np.full_like(self.mask, -1)
        return masks + [anything] * (1 + len(guesses) - len(masks))

    def _take(self, token: int) -> None:
        reasoning = self._reasoning
        led = self._leads
        self._leads = token in self._tokens.leads
        place = None
        is_of_grammar = True
        if not reasoning.is_over:
            place = reasoning.place
            may_begin = reasoning.may_begin
            reasoning.take(token)
            is_of_grammar = may_begin and reasoning.is_over
        is_taken = is_of_grammar and self._state.accept(token)
        # A stop token of the request's own stands outside of the grammar; the request ends with it.
        if is_of_grammar and not is_taken and not _has(self._stops, token):
            raise ValueError(
                f"the grammar does not take token {token}, which its own mask let through"
            )
        self._trail.append((place, led, is_taken))

    def _go_back(self, count: int) -> None:
        num_taken = 0
        for _ in range(count):
            place, self._leads, is_taken = self._trail.pop()
            if place is not None:
                self._reasoning.go_back(place)
            num_taken += is_taken
        if num_taken:
            self._state.rollback(num_taken)

    def _fill(self, mask: Mask) -> None:
        reasoning = self._reasoning
        if not (reasoning.is_over or reasoning.may_begin):
            marker = reasoning.marker_ids
            mask[:] = (
                self._tokens.of(marker) if marker else ~self._ends
            )  # one that ends in its thoughts has no form
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

"""What the worker knows of each constrained row: its grammar state, whether it still reasons, and its next mask."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from builtin_plugins.structured_outputs.grammars import Grammars
from builtin_plugins.structured_outputs.reasoning import Reasoning
from builtin_plugins.structured_outputs.scheduling import News, RowNews
from core.api import GrammarState, Vocabulary

log = logging.getLogger(__name__)
Mask = npt.NDArray[np.int32]
_SURROGATE_LEAD = b"\xed"


class TokenMasks:
    """Masks that depend on the vocabulary alone."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self.ends = self.of(vocabulary.end_ids)
        # Backends count surrogates as characters; text that is encoded has none, so 0xED goes on with 0x80 to 0x9F.
        self.leads = frozenset(i for i, token in enumerate(self._tokens) if token.endswith(_SURROGATE_LEAD))
        self.no_surrogate = ~self.of([i for i, token in enumerate(self._tokens) if b"\xa0" <= token[:1] <= b"\xbf"])

    def of(self, tokens: Sequence[int]) -> Mask:
        """Return a mask with the bits of these tokens set."""
        mask = np.zeros(-(-len(self._tokens) // 32), dtype=np.uint32)
        for token in tokens:
            if token < len(self._tokens):
                mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)


class Row:
    """One request. Follows from its constraint and its tokens alone, so that it can be made anew at any time."""

    def __init__(self, state: GrammarState, stops: Sequence[int], reasoning: Reasoning, tokens: TokenMasks) -> None:
        self._state = state
        self._reasoning = reasoning
        self._tokens = tokens
        self._ends, self._stops = tokens.ends, tokens.of(stops)
        self._first = tokens.of(reasoning.first_ids)
        self._has_own_stops = bool((self._stops & ~self._ends).any())
        self._leads = False
        self.mask: Mask = np.zeros_like(self._ends)
        """Which tokens may come next; no bit is set once the row has failed."""

    def replay(self, tokens: Sequence[int]) -> None:
        """Take in the output so far and make the first mask."""
        for token in tokens:
            self._take(token)
        self._fill()

    def advance(self, token: int) -> None:
        """Take in the token that was sampled and make the mask of the next."""
        try:
            self._take(token)
            self._fill()
        except Exception:
            log.exception("a grammar backend has failed; the request ends, as no token may come")
            self.mask[:] = 0

    def _take(self, token: int) -> None:
        self._leads = token in self._tokens.leads
        was_reasoning = not (self._reasoning.is_over or self._reasoning.first_ids)
        if not self._reasoning.is_over:
            self._reasoning.take(token)
        if was_reasoning or not self._reasoning.is_over:
            return
        # A stop token of the request's own stands outside of the grammar; the request ends with it.
        if not self._state.accept(token) and not self._stops[token // 32] >> token % 32 & 1:
            raise ValueError(f"the grammar does not take token {token}, which its own mask let through")

    def _fill(self) -> None:
        may_begin = bool(self._reasoning.first_ids)
        if not (self._reasoning.is_over or may_begin):
            self.mask[:] = ~self._ends  # an output that ends in its thoughts would not be of the form
            return
        self._state.fill(self.mask)
        if self._leads:
            self.mask &= self._tokens.no_surrogate
        if self._has_own_stops and (self.mask & self._ends).any():
            self.mask |= self._stops
        if may_begin:
            self.mask |= self._first


class Rows:
    """Constrained rows by number, made when first sampled: by then their grammar is compiled."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._news: dict[int, RowNews] = {}
        self._rows: dict[int, Row] = {}
        self._tokens: TokenMasks | None = None

    def __contains__(self, row: int) -> bool:
        return row in self._news

    def __getitem__(self, row: int) -> Row:
        if row not in self._rows:
            self._rows[row] = self._make(self._news[row])
        return self._rows[row]

    def update(self, news: News) -> None:
        """Take over which requests have left and which have come."""
        for row in news.ended:
            del self._news[row]
            self._rows.pop(row, None)
        for new in news.new:
            self._news[new.row] = new

    def _make(self, new: RowNews) -> Row:
        grammar = self._grammars.get(new.params).result()
        vocabulary = self._grammars.vocabulary
        if self._tokens is None:
            self._tokens = TokenMasks(vocabulary)
        starts, ends = self._grammars.reasoning()
        if starts and new.params.skip_reasoning:
            ends = ()
        reasoning = Reasoning(starts, ends, self._grammars.tokenizer, vocabulary, new.prompt_end)
        row = Row(grammar.start(), new.stops, reasoning, self._tokens)
        row.replay(new.output)
        return row

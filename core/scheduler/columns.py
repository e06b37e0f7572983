"""Per-row counters of the batch as numpy columns, so that one step moves all
rows at once.

Knows rows and numbers, no request. Decode steps of the same rows, and the tokens they
return, are only counted; they are written into the columns when a column is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def as_slice(rows: Ints) -> Ints | slice:
    """Return an index for sorted rows: a slice if they are consecutive, which
    is much faster.
    """
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return rows


class Columns:
    """One entry per row; entries of empty rows are stale."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self._planned: Final = np.zeros(num_rows, np.int64)
        self._total: Final = np.zeros(num_rows, np.int64)
        self._known: Final = np.zeros(num_rows, np.int64)
        self._tokens: Final = np.zeros((num_rows, max_len), np.int32)
        self.capacity: Final = np.zeros(num_rows, np.int64)
        """Tokens that have a KV slot in every group."""
        self.last_cached_position: Final = np.zeros(num_rows, np.int64)
        """End of the positions to cache: the request's limit - 1."""
        self.draft_steps: Final[deque[tuple[Ints, Ints]]] = deque()
        """(rows, number of draft tokens of each) of the steps in flight with drafts, in order."""
        self.live: Final = np.zeros(num_rows, np.bool_)
        """Rows that a request has."""
        self._pending_steps = 0
        """Decode steps not yet written into the columns."""
        self._pending_step_rows: Ints = np.zeros(0, np.int64)
        """Rows of these steps."""
        self._pending_tokens: list[list[int]] = []
        """Returned tokens not yet written into the columns, one list per step."""
        self._pending_counts: list[list[int]] = []
        """Number of these tokens per row, for steps with draft tokens."""
        self._pending_token_rows = self._pending_step_rows
        """Rows of these tokens."""

    # --- columns ------------------------------------------------------------

    @property
    def planned(self) -> Ints:
        """Leading tokens cached or planned; draft tokens in flight do not count."""
        self._flush()
        return self._planned

    @property
    def total(self) -> Ints:
        """Known tokens, plus one for each step in flight that samples."""
        self._flush()
        return self._total

    @property
    def known(self) -> Ints:
        """Known tokens."""
        self._flush()
        return self._known

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[rows, positions]: known tokens; stale beyond `known`."""
        self._flush()
        return self._tokens

    @property
    def num_unverified(self) -> Ints:
        """Draft tokens in flight: a row may be ahead of `planned` by up to this many."""
        unverified = np.zeros_like(self._known)
        for rows, num_draft_tokens in self.draft_steps:
            unverified[as_slice(rows)] += num_draft_tokens
        return unverified

    def decoding(self) -> Bools:
        """Return the rows that have one token to compute, and then sample."""
        planned = self.planned
        ready: Bools = planned + 1 == self._total
        ready &= self.live
        ready &= planned < self.last_cached_position
        return ready

    # --- rows come and go ---------------------------------------------------

    def enter(self, row: int, tokens: Sequence[int], limit: int) -> None:
        """Give a row to a request with these tokens, which ends at `limit` tokens."""
        count = len(tokens)
        # pending tokens may still be those of the row's previous owner
        self._flush()
        self._tokens[row, :count] = tokens
        self._known[row] = count
        self._total[row] = count
        self._planned[row] = 0
        self.capacity[row] = 0
        self.last_cached_position[row] = limit - 1
        self.live[row] = True

    def leave(self, row: int) -> list[int]:
        """Free a row; return its known tokens."""
        self.live[row] = False
        known: list[int] = self.tokens[row, : self._known[row]].tolist()
        return known

    # --- steps --------------------------------------------------------------

    def decode(self, rows: Ints, num_draft_tokens: Ints | None) -> None:
        """Record a step that computes one token of each row, and its draft tokens, and samples."""
        if self._pending_steps and rows is not self._pending_step_rows:
            self._flush()
        self._pending_step_rows = rows
        self._pending_steps += 1
        if num_draft_tokens is not None:
            self.draft_steps.append((rows, num_draft_tokens))

    def compute(self, row: int, end: int) -> int:
        """Record a step that computes a row's tokens up to `end`; return how
        many are left.

        With none left, the step samples.
        """
        self._flush()
        self._planned[row] = end
        left = int(self._total[row]) - end
        if not left:
            self._total[row] = end + 1
        return left

    def append_tokens(self, rows: Ints, tokens: list[int], counts: list[int]) -> None:
        """Record the tokens of a step, row by row.

        `counts` is the number of tokens per row, of which all but one were draft
        tokens; empty: one token each.
        """
        if self._pending_tokens:
            same_rows = rows is self._pending_token_rows
            if not same_rows or bool(counts) != bool(self._pending_counts):
                self._flush()
        self._pending_token_rows = rows
        self._pending_tokens.append(tokens)
        if counts:
            self._pending_counts.append(counts)

    def extend(self, row: int, known: int, tokens: Sequence[int]) -> None:
        """Write tokens of one row after its `known` ones; all but one were draft tokens."""
        self._flush()
        count = len(tokens)
        self._tokens[row, known : known + count] = tokens
        self._known[row] = known + count
        if count > 1:
            self._planned[row] += count - 1
            self._total[row] += count - 1

    def _flush(self) -> None:
        if self._pending_steps:
            own = as_slice(self._pending_step_rows)
            self._planned[own] += self._pending_steps
            self._total[own] += self._pending_steps
            self._pending_steps = 0
        if self._pending_tokens:
            self._flush_tokens()

    def _flush_tokens(self) -> None:
        tokens = self._pending_tokens
        counts = self._pending_counts
        rows = self._pending_token_rows
        self._pending_tokens = []
        self._pending_counts = []
        if counts:
            self._write_accepted(rows, tokens, np.array(counts))
            return
        known = self._known[rows]
        num_steps = len(tokens)
        if num_steps == 1:
            self._tokens[rows, known] = tokens[0]
        else:
            positions = known + np.arange(num_steps)[:, None]
            self._tokens[rows, positions] = tokens
        self._known[rows] = known + num_steps

    def _write_accepted(self, rows: Ints, step_tokens: list[list[int]], counts: Ints) -> None:
        """Write several steps with [steps, rows] `counts` of accepted tokens."""
        num_steps = len(step_tokens)
        own = as_slice(rows)
        ends = self._known[own] + np.cumsum(counts, axis=0)
        starts = (ends - counts).ravel()
        per_row = counts.ravel()
        tokens = np.fromiter(chain.from_iterable(step_tokens), np.int32)
        offsets = np.cumsum(per_row) - per_row
        positions = np.repeat(starts - offsets, per_row) + np.arange(len(tokens))
        token_rows = np.repeat(np.tile(rows, num_steps), per_row)
        self._tokens[token_rows, positions] = tokens
        accepted = counts.sum(axis=0)
        self._known[own] += accepted
        self._planned[own] += accepted - num_steps
        self._total[own] += accepted - num_steps

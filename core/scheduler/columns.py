"""What the batch knows of its rows, as columns: a step moves all of them at once. Knows rows and
numbers, no request.

Steps in which the same rows compute one token each are counted, and written into the columns when
somebody looks; so are the tokens that come in.
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


def where(rows: Ints) -> Ints | slice:
    """Return what picks rows, which are in order, from a column: a slice where none lies between,
    many times as fast.
    """
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return rows


class Columns:
    """One entry for each row; entries of empty rows mean nothing."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self._planned: Final = np.zeros(num_rows, np.int64)
        self._total: Final = np.zeros(num_rows, np.int64)
        self._known: Final = np.zeros(num_rows, np.int64)
        self._tokens: Final = np.zeros((num_rows, max_len), np.int32)
        self.capacity: Final = np.zeros(num_rows, np.int64)
        """Tokens that have a place in every group."""
        self.last: Final = np.zeros(num_rows, np.int64)
        """Tokens whose keys and values are ever needed: all but the one at which it ends."""
        self.guessing: Final[deque[tuple[Ints, Ints]]] = deque()
        """Steps in flight with guesses, oldest first: their rows, and how many guesses of each."""
        self.live: Final = np.zeros(num_rows, np.bool_)
        """Rows that somebody has."""
        self._quiet = 0
        """Steps of one token each that are not written down ..."""
        self._quiet_rows: Ints = np.zeros(0, np.int64)
        """... of these rows."""
        self._said: list[list[int]] = []
        """Tokens that came in and are not written down, those of a step in one list ..."""
        self._counts: list[list[int]] = []
        """... how many of each row, where some were guessed ..."""
        self._said_rows = self._quiet_rows
        """... of these rows."""

    # --- what is known of rows --------------------------------------------------------------------

    @property
    def planned(self) -> Ints:
        """Leading tokens whose keys and values are cached or planned; of guesses in flight none is
        counted.
        """
        self._write_down()
        return self._planned

    @property
    def total(self) -> Ints:
        """Known tokens, and those that steps in flight bring at least."""
        self._write_down()
        return self._total

    @property
    def known(self) -> Ints:
        """Known tokens."""
        self._write_down()
        return self._known

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[rows, positions]: known tokens; stale behind them."""
        self._write_down()
        return self._tokens

    @property
    def slack(self) -> Ints:
        """Guesses in flight: how many of them hold is not known yet, and the row may be further by
        as many.
        """
        slack = np.zeros_like(self._known)
        for rows, guesses in self.guessing:
            slack[where(rows)] += guesses
        return slack

    def decoding(self) -> Bools:
        """Return which rows have one token to compute, and sample then."""
        planned = self.planned
        ready: Bools = planned + 1 == self._total
        ready &= self.live
        ready &= planned < self.last
        return ready

    # --- rows come and go -------------------------------------------------------------------------

    def enter(self, row: int, tokens: Sequence[int], limit: int) -> None:
        """Give a row to somebody who has these tokens and ends with `limit` of them."""
        count = len(tokens)
        self._write_down()  # perhaps what nobody wants any more of who had the row
        self._tokens[row, :count] = tokens
        self._known[row] = self._total[row] = count
        self._planned[row] = self.capacity[row] = 0
        self.last[row] = limit - 1
        self.live[row] = True

    def leave(self, row: int) -> list[int]:
        """Take a row back; return its known tokens."""
        self.live[row] = False
        known: list[int] = self.tokens[row, : self._known[row]].tolist()
        return known

    # --- steps ------------------------------------------------------------------------------------

    def decode(self, rows: Ints, guesses: Ints | None) -> None:
        """A step leaves that computes a token of each of these rows, and its guesses, and samples."""
        if self._quiet and rows is not self._quiet_rows:
            self._write_down()
        self._quiet_rows = rows
        self._quiet += 1
        if guesses is not None:
            self.guessing.append((rows, guesses))

    def compute(self, row: int, end: int) -> int:
        """A step leaves that computes a row's tokens up to `end`; return how many are left.

        Of none left, it samples.
        """
        self._write_down()
        self._planned[row], left = end, int(self._total[row]) - end
        if not left:
            self._total[row] = end + 1
        return left

    def say(self, rows: Ints, tokens: list[int], counts: list[int]) -> None:
        """Take in tokens, row by row: `counts` of each, of which all but one were guessed; empty:
        one of each.
        """
        if self._said and (rows is not self._said_rows or bool(counts) != bool(self._counts)):
            self._write_down()
        self._said_rows = rows
        self._said.append(tokens)
        if counts:
            self._counts.append(counts)

    def extend(self, row: int, known: int, tokens: Sequence[int]) -> None:
        """Take in tokens of one row, behind those that are `known`, of which all but one were
        guessed.
        """
        self._write_down()
        more = len(tokens)
        self._tokens[row, known : known + more] = tokens
        self._known[row] = known + more
        if more > 1:
            self._planned[row] += more - 1
            self._total[row] += more - 1

    def _write_down(self) -> None:
        if self._quiet:
            here = where(self._quiet_rows)
            self._planned[here] += self._quiet
            self._total[here] += self._quiet
            self._quiet = 0
        if self._said:
            said = self._said
            counts = self._counts
            rows = self._said_rows
            self._said = []
            self._counts = []
            if counts:
                self._write_guessed(rows, said, np.array(counts))
                return
            known = self._known[rows]
            if len(said) == 1:
                self._tokens[rows, known] = said[0]
            else:
                self._tokens[rows, known + np.arange(len(said))[:, None]] = said
            self._known[rows] = known + len(said)

    def _write_guessed(self, rows: Ints, said: list[list[int]], counts: Ints) -> None:
        """Write down steps, [steps, rows] `counts` of tokens in each: every token goes to a place
        of its own.
        """
        steps = len(said)
        here = where(rows)
        starts = (self._known[here] + np.cumsum(counts, axis=0) - counts).ravel()
        tokens = np.fromiter(chain.from_iterable(said), np.int32)
        each = counts.ravel()
        first = np.cumsum(each) - each
        places = np.repeat(starts - first, each) + np.arange(len(tokens))
        self._tokens[np.repeat(np.tile(rows, steps), each), places] = tokens
        more = counts.sum(axis=0)
        self._known[here] += more
        self._planned[here] += more - steps
        self._total[here] += more - steps

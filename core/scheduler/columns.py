"""What the batch knows of its rows, as columns: a step moves all of them at once. Knows rows and numbers, no request.

Steps in which the same rows compute one token each are counted, and written into the columns when somebody looks; so are
the tokens that come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MANY: Final = 64
"""Steps of accepted guesses that are written down together at the latest."""


def where(rows: Ints) -> Ints | slice:
    """Return what picks rows, which are in order, from a column: a slice where none lies between, many times as fast."""
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
        self.slack: Final = np.zeros(num_rows, np.int64)
        """Guesses in flight: how many of them hold is not known yet, and the row may be further by as many."""
        self.live: Final = np.zeros(num_rows, np.bool_)
        """Rows that somebody has."""
        self._quiet = 0
        """Steps of one token each that are not written down ..."""
        self._quiet_rows: Ints = np.zeros(0, np.int64)
        """... of these rows."""
        self._said: list[list[int]] = []
        """Tokens that came in and are not written down, a column for each step ..."""
        self._said_rows = self._quiet_rows
        """... of these rows."""
        self._accepted: list[tuple[Ints, Ints, Ints, list[int]]] = []
        """Tokens of which some were guessed, and are not written down: rows, first positions, counts, tokens."""

    # --- what is known of rows ---------------------------------------------------------------------------

    @property
    def planned(self) -> Ints:
        """Leading tokens whose keys and values are cached or planned; of guesses in flight none is counted."""
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
        if self._accepted:
            self._write_tokens()
        return self._tokens

    def decoding(self) -> Bools:
        """Return which rows have one token to compute, and sample then."""
        planned = self.planned
        ready: Bools = planned + 1 == self._total
        ready &= self.live
        ready &= planned < self.last
        return ready

    # --- rows come and go --------------------------------------------------------------------------------

    def enter(self, row: int, tokens: Sequence[int], limit: int) -> None:
        """Give a row to somebody who has these tokens and ends with `limit` of them."""
        count = len(tokens)
        self._write_down()  # perhaps what nobody wants any more of who had the row
        self._tokens[row, :count] = tokens
        self._known[row] = self._total[row] = count
        self._planned[row] = self.slack[row] = self.capacity[row] = 0
        self.last[row] = limit - 1
        self.live[row] = True

    def leave(self, row: int) -> list[int]:
        """Take a row back; return its known tokens."""
        self.live[row] = False
        known: list[int] = self.tokens[row, : self._known[row]].tolist()
        return known

    # --- steps -------------------------------------------------------------------------------------------

    def decode(self, rows: Ints) -> None:
        """A step leaves that computes a token of each of these rows, and samples."""
        if self._quiet and rows is not self._quiet_rows:
            self._write_down()
        self._quiet_rows = rows
        self._quiet += 1

    def compute(self, row: int, end: int) -> int:
        """A step leaves that computes a row's tokens up to `end`; return how many are left. Of none left, it samples."""
        self._write_down()
        self._planned[row], left = end, int(self._total[row]) - end
        if not left:
            self._total[row] = end + 1
        return left

    def say(self, rows: Ints, tokens: list[int]) -> None:
        """Take in one token of each of these rows."""
        if self._said and rows is not self._said_rows:
            self._write_down()
        self._said_rows = rows
        self._said.append(tokens)

    def extend(self, row: int, known: int, tokens: Sequence[int]) -> None:
        """Take in tokens of one row, behind those that are `known`, of which all but one were guessed."""
        self._write_down()
        more = len(tokens)
        self._tokens[row, known : known + more] = tokens
        self._known[row] = known + more
        if more > 1:
            self._planned[row] += more - 1
            self._total[row] += more - 1

    def accept(self, rows: Ints, tokens: list[int], counts: Ints) -> None:
        """Take in `counts` tokens of each of these rows, row by row, of which all but one were guessed."""
        self._write_down()
        self._accepted.append((rows, self._known[rows], counts, tokens))
        here, more = where(rows), counts - 1
        self._known[here] += counts
        self._planned[here] += more
        self._total[here] += more
        if len(self._accepted) >= MANY:
            self._write_tokens()

    def _write_down(self) -> None:
        if self._quiet:
            here = where(self._quiet_rows)
            self._planned[here] += self._quiet
            self._total[here] += self._quiet
            self._quiet = 0
        if self._said:
            said, rows, known = self._said, self._said_rows, self._known[self._said_rows]
            self._said = []
            if len(said) == 1:
                self._tokens[rows, known] = said[0]
            else:
                self._tokens[rows, known + np.arange(len(said))[:, None]] = said
            self._known[rows] = known + len(said)

    def _write_tokens(self) -> None:
        """Write all accepted tokens: each goes to a place of its own, so their order is of no matter."""
        accepted, self._accepted = self._accepted, []
        rows, starts, counts = (np.concatenate([entry[i] for entry in accepted]) for i in range(3))
        tokens = np.fromiter(chain.from_iterable(entry[3] for entry in accepted), np.int32)
        inside = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._tokens[np.repeat(rows, counts), np.repeat(starts, counts) + inside] = tokens

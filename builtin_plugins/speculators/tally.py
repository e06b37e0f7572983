"""How many guesses were made and were right, by row: steps are counted many at a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from builtin_plugins.speculators.messages import Outcome, Report, column

MANY: Final = 64
"""Reports that are counted together at the latest."""


class Tally:
    """Counts of those who have rows."""

    def __init__(self, num_rows: int, most: int) -> None:
        self._accepted = np.zeros((num_rows, most + 1), dtype=np.int64)
        """How often so many guesses of a step were right."""
        self._tokens = np.zeros(num_rows, dtype=np.int64)
        self._reports: list[Report] = []

    def take(self, report: Report) -> None:
        """Take in a step."""
        self._reports.append(report)
        if len(self._reports) >= MANY:
            self._count()

    def leave(self, row: int) -> Outcome:
        """Return what was counted of a row, and begin anew."""
        self._count()
        outcome = _outcome(self._accepted[row], int(self._tokens[row]))
        self._accepted[row] = self._tokens[row] = 0
        return outcome

    def _count(self) -> None:
        if self._reports:
            columns = [(each.rows, each.drafted, each.accepted) for each in self._reports]
            rows, drafted, accepted = (
                column(b"".join(parts)) for parts in zip(*columns, strict=True)
            )
            num_rows, width = self._accepted.shape
            found = np.bincount(rows * width + accepted, minlength=num_rows * width)
            self._accepted += found.reshape(num_rows, width)
            self._tokens += np.bincount(rows, drafted, num_rows).astype(np.int64)
            self._reports.clear()


def _outcome(accepted: np.ndarray[tuple[int], np.dtype[np.int64]], tokens: int) -> Outcome:
    at_least = np.cumsum(accepted[::-1])[::-1].tolist()
    return Outcome(at_least[0], tokens, [count for count in at_least[1:] if count])

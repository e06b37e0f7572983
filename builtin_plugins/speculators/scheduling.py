"""The scheduler half: asks for as many guesses as the worker half wants, and counts them by
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from builtin_plugins.speculators.messages import NAME, Granted, Outcome, Report, column
from builtin_plugins.speculators.tally import Tally

if TYPE_CHECKING:
    import numpy.typing as npt

    from core.api import StepPlan
    from core.contracts.scheduling import RunningRows

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Report).decode


class Asker:
    """Decides nothing, so that a journal of steps replays it: all it does follows from what the
    worker half reports.
    """

    name = NAME

    def __init__(self, num_rows: int, most: int) -> None:
        """`most` tokens are guessed in a step of one row."""
        self._wanted: Final = np.zeros(num_rows, dtype=np.int64)
        self._asked = b"", b""
        """As the last report says it: rows that shall guess, and how many tokens each."""
        self._entered = False
        """Somebody has got a row since."""
        self._tally: Final = Tally(num_rows, most)
        self._outcomes: Final[dict[str, Outcome]] = {}
        self._rows: Final[dict[str, int]] = {}
        self._owners: Final[dict[int, str]] = {}
        self.total: Final = Outcome()
        """Of all requests that have left a row."""

    def steers(self) -> bool:
        """Say whether any row shall guess."""
        return bool(self._asked[0])

    def guesses(self, rows: RunningRows) -> npt.NDArray[np.int64]:
        """Return what is wanted of the rows."""
        return self._wanted[rows.rows]

    def planned(self, plan: StepPlan) -> bytes | None:
        """Note who has which row; tell the worker half what was granted."""
        for new in plan.new:
            for row in {
                new.row,
                self._rows.get(new.request_id, new.row),
            }:  # it had another one before it was preempted
                self._left(row)
            self._owners[new.row], self._rows[new.request_id] = new.request_id, new.row
            self._wanted[new.row], self._entered = 0, True
        return _encode(Granted(plan.steady, plan.guesses)) if plan.guesses else None

    def result(self, payload: bytes) -> None:
        """Take in what a step has shown."""
        report = _decode(payload)
        if report.rows:
            self._tally.take(report)
        asked = report.wanting, report.wanted
        if asked != self._asked or self._entered:
            self._asked = asked
            self._entered = False
            self._wanted.fill(0)
            self._wanted[column(report.wanting)] = column(report.wanted)

    def finished(self, request: Any) -> bool:
        """Tell the edge what came of the request's guesses."""
        row = self._rows.get(request.request_id)
        if row is not None:
            self._left(row)
        outcome = self._outcomes.pop(request.request_id, None)
        if outcome is not None and outcome.drafts:
            request.news[NAME] = _encode(outcome)
        return False

    def _left(self, row: int) -> None:
        """Whoever has a row leaves it."""
        name = self._owners.pop(row, None)
        outcome = self._tally.leave(row)
        if name is not None:
            del self._rows[name]
            self._outcomes.setdefault(name, Outcome()).add(outcome)
        self.total.add(outcome)

"""The scheduler half: asks for as many guesses as the worker half wants, and counts them by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from builtin_plugins.speculators.messages import NAME, Granted, Outcome, Report

if TYPE_CHECKING:
    import numpy.typing as npt

    from core.api import StepPlan
    from core.contracts.scheduling import RunningRows

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Report).decode


class Asker:
    """Decides nothing, so that a journal of steps replays it: all it does follows from what the worker half reports."""

    name = NAME

    def __init__(self, num_rows: int) -> None:
        self._wanted: Final = np.zeros(num_rows, dtype=np.int64)
        self._wants = False
        self._outcomes: dict[str, Outcome] = {}
        self._of_row: dict[int, Outcome] = {}
        self.total: Final = Outcome()
        """Of all requests."""

    def steers(self) -> bool:
        """Say whether any row shall guess."""
        return self._wants

    def guesses(self, rows: RunningRows) -> npt.NDArray[np.int64]:
        """Return what is wanted of the rows."""
        return self._wanted[rows.rows]

    def planned(self, plan: StepPlan) -> bytes | None:
        """Note who has which row; tell the worker half what was granted."""
        for new in plan.new:
            self._of_row[new.row] = self._outcomes.setdefault(new.request_id, Outcome())
            self._wanted[new.row] = 0
        if not plan.guesses:
            return None
        granted = [(row, count) for row, count in zip(plan.steady, plan.guesses, strict=False) if count]
        rows, counts = zip(*granted, strict=True)
        return _encode(Granted(list(rows), list(counts)))

    def result(self, payload: bytes) -> None:
        """Take in what a step has shown."""
        report = _decode(payload)
        for row, drafted, accepted in zip(report.rows, report.drafted, report.accepted, strict=True):
            self._of_row[row].count(drafted, accepted)
            self.total.count(drafted, accepted)
        self._wanted.fill(0)
        self._wanted[report.wanting] = report.wanted
        self._wants = bool(report.wanting)

    def finished(self, request: Any) -> bool:
        """Tell the edge what came of the request's guesses."""
        outcome = self._outcomes.pop(request.request_id, None)
        if outcome is not None and outcome.drafts:
            request.news[NAME] = _encode(outcome)
        return False

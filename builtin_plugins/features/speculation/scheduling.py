"""Scheduler half: requests draft tokens for the worker half, and counts accepted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from builtin_plugins.features.speculation.messages import (
    NAME,
    DraftStats,
    Granted,
    Report,
    column,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from core.api.execution import StepPlan
    from core.api.features import RunningRows

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Report).decode
MAX_PENDING_REPORTS: Final = 64
"""Reports that are counted at once."""


class SpeculationScheduler:
    """Follows the worker half's reports only, so that a journal of steps replays it."""

    name = NAME

    def __init__(self, num_rows: int, max_draft_tokens: int) -> None:
        """`max_draft_tokens`: of one row in one step."""
        self._num_requested: Final = np.zeros(num_rows, dtype=np.int64)
        """Draft tokens requested by row."""
        self._last_request = b"", b""
        """`next_rows` and `next_counts` of the last report."""
        self._has_new_rows = False
        """True if a row has a new request since the last report."""
        self._acceptance: Final = AcceptanceStats(num_rows, max_draft_tokens)
        self._stats: Final[dict[str, DraftStats]] = {}
        """Statistics of requests that have left a row, by request."""
        self._rows: Final[dict[str, int]] = {}
        self._owners: Final[dict[int, str]] = {}
        self.total: Final = DraftStats()
        """Statistics of all requests that have left a row."""

    def is_active(self) -> bool:
        """Return whether any row requests draft tokens."""
        return bool(self._last_request[0])

    def num_draft_tokens(self, rows: RunningRows) -> npt.NDArray[np.int64]:
        """Return the requested draft tokens of the rows."""
        return self._num_requested[rows.rows]

    def planned(self, plan: StepPlan) -> bytes | None:
        """Track the owners of rows. Return the draft tokens granted to each row."""
        for new in plan.new:
            # A preempted request may resume in another row.
            for row in {new.row, self._rows.get(new.request_id, new.row)}:
                self._release_row(row)
            self._owners[new.row] = new.request_id
            self._rows[new.request_id] = new.row
            self._num_requested[new.row] = 0
            self._has_new_rows = True
        if not plan.num_draft_tokens:
            return None
        return _encode(Granted(plan.decode_rows, plan.num_draft_tokens))

    def result(self, payload: bytes) -> None:
        """Count a step's report, and remember the requested draft lengths."""
        report = _decode(payload)
        if report.drafted_rows:
            self._acceptance.add(report)
        request = report.next_rows, report.next_counts
        if request != self._last_request or self._has_new_rows:
            self._last_request = request
            self._has_new_rows = False
            self._num_requested.fill(0)
            self._num_requested[column(report.next_rows)] = column(report.next_counts)

    def finished(self, request: Any) -> bool:
        """Attach the draft statistics to the request's final output."""
        row = self._rows.get(request.request_id)
        if row is not None:
            self._release_row(row)
        stats = self._stats.pop(request.request_id, None)
        if stats is not None and stats.num_steps:
            request.feature_outputs[NAME] = _encode(stats)
        return False

    def _release_row(self, row: int) -> None:
        """Collect the statistics of a row after its request has left."""
        request_id = self._owners.pop(row, None)
        stats = self._acceptance.pop(row)
        if request_id is not None:
            del self._rows[request_id]
            self._stats.setdefault(request_id, DraftStats()).add(stats)
        self.total.add(stats)


class AcceptanceStats:
    """Draft and accepted tokens by row. Counts many reports at once."""

    def __init__(self, num_rows: int, max_draft_tokens: int) -> None:
        self._num_steps = np.zeros((num_rows, max_draft_tokens + 1), dtype=np.int64)
        """Steps by row and number of accepted tokens."""
        self._num_draft_tokens = np.zeros(num_rows, dtype=np.int64)
        self._reports: list[Report] = []

    def add(self, report: Report) -> None:
        """Add a step's report."""
        self._reports.append(report)
        if len(self._reports) >= MAX_PENDING_REPORTS:
            self._count()

    def pop(self, row: int) -> DraftStats:
        """Return the statistics of a row, and reset them."""
        self._count()
        stats = _stats_of(self._num_steps[row], int(self._num_draft_tokens[row]))
        self._num_steps[row] = 0
        self._num_draft_tokens[row] = 0
        return stats

    def _count(self) -> None:
        if self._reports:
            columns = [
                (each.drafted_rows, each.num_drafted, each.num_accepted) for each in self._reports
            ]
            rows, drafted, accepted = (
                column(b"".join(parts)) for parts in zip(*columns, strict=True)
            )
            num_rows, width = self._num_steps.shape
            counts = np.bincount(rows * width + accepted, minlength=num_rows * width)
            self._num_steps += counts.reshape(num_rows, width)
            self._num_draft_tokens += np.bincount(rows, drafted, num_rows).astype(np.int64)
            self._reports.clear()


def _stats_of(
    num_steps: np.ndarray[tuple[int], np.dtype[np.int64]], num_draft_tokens: int
) -> DraftStats:
    """Return statistics from the steps by number of accepted tokens."""
    at_least = np.cumsum(num_steps[::-1])[::-1].tolist()
    per_position = [count for count in at_least[1:] if count]
    return DraftStats(at_least[0], num_draft_tokens, per_position)

"""Worker half: writes draft tokens where they are granted, and requests the next draft lengths.

Every rank drafts the same tokens. The first rank also measures step times and acceptance, and so
decides the draft lengths.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from builtin_plugins.features.speculation.draft_length import (
    MAX_LOSS_RATIO,
    NUM_SAMPLES,
    DraftLengthController,
    Ints,
)
from builtin_plugins.features.speculation.drafter import Drafter
from builtin_plugins.features.speculation.loss_budget import MAX_PAUSE, LossBudget
from builtin_plugins.features.speculation.messages import NAME, Report

if TYPE_CHECKING:
    from builtin_plugins.speculators.api import SpeculativeConfig, Speculator
    from core.api.execution import NewRow, Sampled, WorkerParts
    from core.api.models import ForwardBatch

_encode: Final = msgspec.msgpack.Encoder().encode
MIN_PAUSE: Final = 8
"""Steps of the first pause after draft tokens did not pay; each further pause doubles."""


class SpeculationWorker(Drafter):
    """Measures steps and acceptance, and decides how many tokens to draft."""

    name = NAME

    def __init__(
        self,
        speculator: Speculator,
        settings: SpeculativeConfig,
        num_rows: int,
        explain: Callable[[Exception], str],
    ) -> None:
        """`explain`: returns the log line for an exception of the speculator."""
        super().__init__(speculator, explain)
        self.max_draft_tokens = settings.max_draft_tokens
        self._max_rows = settings.disable_by_batch_size or num_rows + 1
        """Number of rows from which on nothing is drafted."""
        self._adaptive = settings.adaptive
        self._controller = self._make_controller(settings, num_rows + 1)
        self._owners: list[NewRow | None] = [None] * (num_rows + 1)
        self._sampled: Sampled | None = None
        self._begun_s = 0.0
        self._num_tokens = 0
        self._ended_s = 0.0
        """End of the last step; 0: unknown."""
        self._gaps_s: tuple[deque[float], deque[float]] = (
            deque(maxlen=NUM_SAMPLES),
            deque(maxlen=NUM_SAMPLES),
        )
        """Host time after recent steps, without and with draft tokens. The shortest counts."""
        self._pause = 0
        """Steps left in the current pause."""
        self._last_pause = 0
        """Length of the last pause."""
        self._loss_budget: Final = LossBudget()
        self._is_paused = False
        """True if this step belongs to a pause."""
        self._num_skipped = 0
        """Skipped steps since the last one."""
        self._last_step_s = 0.0
        """Time of the last step that was not skipped."""
        self._pause_rows = 0
        """Rows when the pause began."""
        self._choosing_s: deque[float] = deque(maxlen=NUM_SAMPLES)
        """Recent times per row to find drafts and choose their lengths. The shortest counts."""
        self._has_requested = False
        """True if the last report requested draft tokens."""

    def _make_controller(self, settings: SpeculativeConfig, num_rows: int) -> DraftLengthController:
        return DraftLengthController(
            num_rows, settings.max_draft_tokens, adaptive=settings.adaptive
        )

    def attach(self, parts: WorkerParts) -> None:
        """Remember the batch."""
        super().attach(parts)
        self._decides = parts.group.rank == 0

    # --- before the forward pass

    def skips_step(self, num_rows: int, payload: bytes | None) -> bool:
        """Return whether the step needs no call.

        A step after a request for draft tokens is not skipped: its rows' last positions must be
        known. Only the deciding rank knows when that is.
        """
        self._is_paused = not num_rows or self._check_pause(num_rows)
        reads_hidden = self._on_hidden_states is not None and self._speculator is not None
        is_idle = not (self._has_requested or reads_hidden)
        skips = self._is_paused and payload is None and self._decides and is_idle
        self._num_skipped += skips
        self._ended_s = 0.0 if skips else self._ended_s
        return skips

    def begin(self, payload: bytes | None) -> None:
        """Write the granted draft tokens."""
        self._begun_s = time.perf_counter()
        self._sampled = None
        self._num_tokens = 0
        if self._ended_s:
            self._gaps_s[bool(self._drafted[0])].append(self._begun_s - self._ended_s)
        self._ended_s = 0.0
        self._write_granted(payload)

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Count the step's tokens."""
        super().before_forward(batch, payload)
        self._num_tokens = len(batch.input_ids)

    # --- after it

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """Remember the sampled tokens until the step has ended."""
        self._sampled = sampled

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Report accepted tokens, and request the next draft lengths."""
        self._drafts.clear()
        sampled = self._sampled
        if not self._decides or sampled is None:
            return None
        ended_s = time.perf_counter()
        self._ended_s = ended_s
        gap_s = min(self._gaps_s[bool(self._drafted[0])], default=0.0)
        seconds = ended_s - self._begun_s + gap_s
        self._credit_time(seconds)
        speculator = self._speculator
        if speculator is None or self._is_paused:  # it may have failed in this step
            if not self._has_requested:
                return None
            self._has_requested = False
            return _encode(Report())
        rows = _sampling_rows(sampled)
        self._track_owners(rows)
        num_drafted = [0] * len(rows)
        if self._drafted[0]:
            counts = dict(zip(*self._drafted, strict=True))
            num_drafted = [counts.get(row, 0) for row in rows]
        num_accepted = self._count_accepted(rows, num_drafted, sampled)
        self._account_step(len(rows), seconds, sum(num_accepted))
        next_counts = [0] * len(rows)
        pause = 0
        if not (self._adaptive and self._loss_budget.is_spent):
            next_counts, pause = self._choose_num_drafts(speculator, rows, sampled)
            self._choosing_s.append((time.perf_counter() - ended_s) / len(rows))
        self._ended_s = time.perf_counter()
        self._loss_budget.spend(min(self._ended_s - ended_s, MAX_LOSS_RATIO * seconds))
        if self._adaptive and not any(next_counts):
            self._pause = max(pause, self._loss_budget.pause(seconds))
            self._pause_rows = len(rows)
        report = _make_report(rows, num_drafted, num_accepted, next_counts)
        if not (report.drafted_rows or report.next_rows or self._has_requested):
            return None
        self._has_requested = bool(report.next_rows)
        return _encode(report)

    def _credit_time(self, seconds: float) -> None:
        """Credit this step and the skipped ones before it to the controller and the loss budget."""
        # Skipped steps were not measured; they took about as long as their neighbours.
        skipped_s = min(seconds, self._last_step_s)
        for account in (self._controller, self._loss_budget):
            account.add_time(seconds)
            account.add_time(skipped_s, self._num_skipped)
        self._num_skipped = 0
        self._last_step_s = seconds

    def _account_step(self, num_rows: int, seconds: float, num_accepted: int) -> None:
        """Record what the step cost, and what its draft tokens saved."""
        costs = self._controller.costs
        num_decode_tokens = num_rows + sum(self._drafted[1])
        if self._num_tokens > num_decode_tokens:
            costs.add_mixed_step(self._num_tokens, seconds)
        else:
            costs.add_decode_step(self._num_tokens, seconds)
        if self._drafted[0]:
            saving_s = self._controller.saving(
                num_rows, seconds, num_accepted / num_rows, self._drafting_s
            )
            self._loss_budget.add_saving(saving_s, self._controller.plain_s(num_rows))

    def _check_pause(self, num_rows: int) -> bool:
        """Return whether this step belongs to a pause, and count it."""
        if num_rows >= self._max_rows or self._speculator is None:
            return True
        if self._pause and 2 * num_rows > self._pause_rows:
            self._pause -= 1
            return True
        self._pause = 0
        return False

    def _track_owners(self, rows: Sequence[int]) -> None:
        for row in rows:
            owner = self._batch.requests[row]
            if owner is not self._owners[row]:
                self._owners[row] = owner
                self._controller.reset_row(row)

    def _count_accepted(
        self, rows: Sequence[int], num_drafted: Sequence[int], sampled: Sampled
    ) -> list[int]:
        """Return the accepted tokens of each row, and update the acceptance rates."""
        if not self._drafted[0]:
            return [0] * len(rows)
        accepted = np.minimum(sampled.accepted.numpy(force=True) - 1, num_drafted)
        drafted = np.asarray(num_drafted).nonzero()[0]
        if len(drafted):
            verified = self._num_verified(rows, np.asarray(num_drafted), accepted)
            self._controller.add_verified(
                np.asarray(rows)[drafted], verified[drafted], accepted[drafted]
            )
        counts: list[int] = accepted.tolist()
        return counts

    def _num_verified(self, rows: Sequence[int], num_drafted: Ints, accepted: Ints) -> Ints:
        """Return the verified draft tokens of each row: accepted ones and the first rejected."""
        return np.minimum(accepted + 1, num_drafted)

    def _num_available(self, rows: Sequence[int]) -> Ints:
        """Return the draft tokens that each row may have."""
        return np.full(len(rows), self.max_draft_tokens)

    def _choose_num_drafts(
        self, speculator: Speculator, rows: Sequence[int], sampled: Sampled
    ) -> tuple[list[int], int]:
        """Return the next draft length of each row; if all are 0, also the steps to pause."""
        row_index = np.asarray(rows)
        available = self._num_available(rows)
        # After a pause, look drafts up only if they would pay if every row had one.
        hopeless = (
            self._last_pause > 0
            and not self._controller.choose(row_index, available, dry_run=True).any()
        )
        if speculator.is_lookup and not hopeless:
            requests = [
                (row, last + 1, self.max_draft_tokens)
                for row, last in zip(rows, sampled.next_positions.tolist(), strict=True)
            ]
            self._drafts = self._propose(speculator, requests)
            available = np.array([len(self._drafts.get(row, ())) for row in rows])
            if not available.any():
                return [0] * len(rows), 0
        choosing_s = min(self._choosing_s, default=0.0) * len(rows)
        if hopeless:
            chosen = np.zeros_like(row_index)
        else:
            chosen = self._controller.choose(row_index, available, choosing_s)
        if chosen.any():
            self._last_pause = 0
        else:
            self._last_pause = max(MIN_PAUSE, min(MAX_PAUSE, 2 * self._last_pause))
        counts: list[int] = chosen.tolist()
        return counts, self._last_pause


def _make_report(
    rows: Sequence[int],
    num_drafted: Sequence[int],
    num_accepted: Sequence[int],
    next_counts: Sequence[int],
) -> Report:
    """Return the report of rows that have drafted, or that request draft tokens."""
    drafted = [index for index, count in enumerate(num_drafted) if count]
    return Report.of(
        [rows[index] for index in drafted],
        [num_drafted[index] for index in drafted],
        [num_accepted[index] for index in drafted],
        [row for row, count in zip(rows, next_counts, strict=True) if count],
        [count for count in next_counts if count],
    )


def _sampling_rows(sampled: Sampled) -> list[int]:
    """Return the rows that sample, each once."""
    rows = sampled.rows.rows
    if len(rows) == len(sampled.next_positions):
        return rows
    return [row for row, point in zip(rows, sampled.rows.points, strict=True) if point == 0]

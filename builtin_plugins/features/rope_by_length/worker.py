"""Worker half: shifts the positions of short requests to the rows of their rotary table."""

from __future__ import annotations

import torch

from builtin_plugins.features.rope_by_length.scheduling import NAME
from core.api.execution import WorkerParts
from core.api.models import ForwardBatch


class PositionShift:
    """Shifts positions of short requests by the length of the long table, which comes first."""

    name = NAME

    def attach(self, parts: WorkerParts) -> None:
        """Set the rows, and the length of the table."""
        self._requests = parts.batch.requests
        self._shift: int = parts.model.spec.max_positions  # type: ignore[attr-defined]

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Shift the positions of a step, in a tensor of their own."""
        shifts = [self._shift * self._is_short(row) for row in batch.rows]
        if not any(shifts):
            return
        by_token = torch.tensor(shifts).repeat_interleave(torch.tensor(batch.counts))
        positions = batch.positions
        batch.positions = positions + by_token.to(positions.device, non_blocking=True)

    def _is_short(self, row: int) -> bool:
        new = self._requests[row] if row < len(self._requests) else None
        return new is not None and NAME in new.features

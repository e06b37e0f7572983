"""Messages between the extensions of tracing. Times are those of the machine's monotonic clock."""

from __future__ import annotations

import msgspec


class StepTime(msgspec.Struct, array_like=True):
    """Time of one step on one rank, in seconds; None: not measured."""

    step: int
    forward_s: float | None
    execute_s: float | None


class BatchResidency(msgspec.Struct, array_like=True):
    """A sequence's time in the engine."""

    context: bytes
    """Trace headers of the request's span, as JSON."""
    engine_id: str
    pid: int
    """Process id of the engine."""
    arrived_s: float
    preemptions: int = 0
    spans: list[tuple[float, float]] = []
    """Times of entering and leaving the batch."""
    forward_s: float | None = None
    """Forward passes of all steps that computed the sequence, in seconds."""
    execute_s: float | None = None
    """All steps that computed the sequence, in seconds."""

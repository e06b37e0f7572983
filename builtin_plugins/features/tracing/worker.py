"""Worker extension that measures step times, with `--collect-detailed-traces`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from builtin_plugins.features.tracing.messages import StepTime
from builtin_plugins.features.tracing.settings import NAME, Detail

if TYPE_CHECKING:
    import torch

    from core.api.models import ForwardBatch
    from core.api.sampling import SampleRows


class StepTimer:
    """Reads the clock four times per step. On a GPU, times are those of the launches."""

    name = NAME

    def __init__(self, detail: Detail) -> None:
        self._detail = detail
        self._begun_s = 0.0
        self._forward_s: float | None = None
        self._hidden_s: float | None = None

    def begin(self, payload: bytes | None) -> None:
        """Record the start of the step."""
        self._begun_s = time.perf_counter()
        self._forward_s = None
        self._hidden_s = None

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Record the start of the forward pass."""
        self._forward_s = time.perf_counter()

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Record the end of the forward pass."""
        self._hidden_s = time.perf_counter()
        return logits

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the times for the scheduler extension."""
        if payload is None:  # the step has no traced sequence
            return None
        now_s = time.perf_counter()
        forward_s = None
        if self._detail.model and self._forward_s is not None:
            forward_s = (self._hidden_s or now_s) - self._forward_s
        execute_s = now_s - self._begun_s if self._detail.worker else None
        return msgspec.msgpack.encode(
            StepTime(int.from_bytes(payload, "little"), forward_s, execute_s)
        )

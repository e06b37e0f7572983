"""The worker half, with `--collect-detailed-traces`: how long the device's part of each step takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from builtin_plugins.features.tracing.detail import NAME, Detail, StepTime

if TYPE_CHECKING:
    import torch

    from core.api import ForwardBatch, SampleRows


class StepTimes:
    """Looks at a clock four times per step.

    Where a device computes beside its host, times are those of the launches.
    """

    name = NAME

    def __init__(self, detail: Detail) -> None:
        self._detail = detail
        self._begun_s = 0.0
        self._forward_s: float | None = None
        self._hidden_s: float | None = None

    def begin(self, payload: bytes | None) -> None:
        """Note when the step began."""
        self._begun_s = time.perf_counter()
        self._forward_s = self._hidden_s = None

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Note when the model began."""
        self._forward_s = time.perf_counter()

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Note when the model was done."""
        self._hidden_s = time.perf_counter()
        return logits

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Tell the other half."""
        if payload is None:  # nobody in the step is traced
            return None
        now_s = time.perf_counter()
        forward_s = None
        if self._detail.model and self._forward_s is not None:
            forward_s = (self._hidden_s or now_s) - self._forward_s
        execute_s = now_s - self._begun_s if self._detail.worker else None
        return msgspec.msgpack.encode(
            StepTime(int.from_bytes(payload, "little"), forward_s, execute_s)
        )

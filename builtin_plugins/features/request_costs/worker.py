"""Worker half: measures the processor time of steps."""

from __future__ import annotations

import time

import msgspec

from builtin_plugins.features.request_costs.messages import NAME, StepCost


class StepMeter:
    """Reads the processor time of this process when a step begins and ends.

    Other threads of the process count too: those of the kernels, and whatever runs meanwhile.
    """

    name = NAME

    def __init__(self) -> None:
        self._begun_s = 0.0

    def begin(self, payload: bytes | None) -> None:
        """Remember the time."""
        self._begun_s = time.process_time()

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the time of the step."""
        if payload is None:
            return None
        cpu_s = time.process_time() - self._begun_s
        return msgspec.msgpack.encode(StepCost(int.from_bytes(payload, "little"), cpu_s))

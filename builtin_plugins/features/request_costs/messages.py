"""Messages between the halves of request costs, and the names of the counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

NAME: Final = "request_costs"
PREFIX: Final = "request_cost_"
CPU_SECONDS: Final = f"{PREFIX}cpu_seconds"
KV_BYTE_SECONDS: Final = f"{PREFIX}kv_byte_seconds"
COMPUTED_TOKENS: Final = f"{PREFIX}computed_tokens"


class StepCost(msgspec.Struct, array_like=True, frozen=True):
    """Processor time that one rank spent on a step."""

    step: int
    cpu_s: float


class Cost(msgspec.Struct, array_like=True):
    """Costs of one sequence so far."""

    cpu_s: float = 0.0
    """Its share of the ranks' processor time, in seconds."""
    kv_byte_s: float = 0.0
    """Bytes of KV cache times the seconds for which it held them. Shared blocks count in full."""
    computed_tokens: int = 0
    """Positions computed for it; recomputed ones and draft tokens count too."""

    def counts(self) -> Mapping[str, float]:
        """Return the counts by metric."""
        return {
            CPU_SECONDS: self.cpu_s,
            KV_BYTE_SECONDS: self.kv_byte_s,
            COMPUTED_TOKENS: float(self.computed_tokens),
        }

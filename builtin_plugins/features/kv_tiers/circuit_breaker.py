"""Circuit breaker: stops using a store that fails, and tries it again later."""

from __future__ import annotations

import logging
from typing import Final

from builtin_plugins.features.kv_tiers.errors import DAMAGED, GONE, MISMATCH, TIMED_OUT

log = logging.getLogger(__name__)
FAILURE_THRESHOLD: Final = 3
"""Consecutive failures that open the breaker."""
PROBATION_BLOCKS: Final = 64
"""Consecutive good blocks after which a damaged block is no longer reported."""
MIN_OPEN_STEPS: Final = 32
"""Steps for which the breaker stays open at first; doubled with each further failure."""
MAX_OPEN_STEPS: Final = 4096
"""Longest time that the breaker stays open, in steps."""


class CircuitBreaker:
    """Counts the failures of one operation. Time is counted in steps, so it is deterministic."""

    def __init__(self, connector: str, operation: str) -> None:
        """`operation`: what the breaker guards, for log lines ("reading")."""
        self._connector = connector
        self._operation = operation
        self.reason = ""
        """Last error; empty while the operation works."""
        self._failures = 0
        self._open_steps = 0
        self._open_until = 0
        self._probation = 0
        """Good blocks left until the operation counts as healthy."""
        self._stuck: set[int] = set()
        """Ids of transfers that exceeded `timeout_s`."""

    @property
    def public_reason(self) -> str:
        """The error without its variable parts. For mismatching peers: the differences."""
        if self.reason.startswith(MISMATCH):
            return self.reason.removeprefix(MISMATCH)
        return self.reason.partition(":")[0]

    @property
    def is_degraded(self) -> bool:
        """True while the operation fails, is stuck, or recently returned a damaged block."""
        return bool(self._stuck or self._probation) or self._failures >= FAILURE_THRESHOLD

    def allows(self, step: int) -> bool:
        """Return whether a new operation may begin in this step."""
        return not self._stuck and step >= self._open_until

    def on_timeout(self, ids: list[int], step: int) -> None:
        """Open the breaker until these transfers end."""
        if ids:
            self._stuck.update(ids)
            self._fail(TIMED_OUT, step, FAILURE_THRESHOLD)

    def on_cancel(self, id_: int) -> None:
        """Forget a transfer without counting a result."""
        self._stuck.discard(id_)

    def on_result(self, id_: int, error: str, step: int) -> None:
        """Count the result of a transfer. `error`: empty if it succeeded."""
        self._stuck.discard(id_)
        if error.startswith(DAMAGED):
            self._probation = PROBATION_BLOCKS
        elif not error:
            self._probation = max(0, self._probation - 1)
        if error:
            # A store that reports a missing block at once still works.
            count = FAILURE_THRESHOLD if error.startswith(MISMATCH) else 1
            self._fail(error, step, count, opens=not error.startswith(GONE))
        elif self.reason and not self._stuck:
            if self._open_steps:
                log.info("%s by the KV connector %s works again", self._operation, self._connector)
            self._failures = 0
            self._open_steps = 0
            self._open_until = 0
            self.reason = self.reason if self._probation else ""

    def _fail(self, reason: str, step: int, count: int, *, opens: bool = True) -> None:
        self._failures += count
        self.reason = reason
        if opens and self._failures >= FAILURE_THRESHOLD and step >= self._open_until:
            if not self._open_steps:
                log.warning(
                    "%s by the KV connector %s fails; it is paused: %s",
                    self._operation,
                    self._connector,
                    reason,
                )
            self._open_steps = min(MAX_OPEN_STEPS, max(MIN_OPEN_STEPS, 2 * self._open_steps))
            self._open_until = step + self._open_steps

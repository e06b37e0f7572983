"""Limits of the requests that an engine holds before it refuses further ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.errors import QueueFull

if TYPE_CHECKING:
    from core.config.sections import SchedulerConfig
    from core.scheduler import Scheduler
    from core.scheduler.journal import Journal


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of queued requests; None: no limit."""

    waiting: int | None = None
    """Maximum number of waiting requests (--max-waiting)."""
    unfinished: int | None = None
    """Maximum number of waiting and running requests (--max-num-queued-reqs)."""
    prefill_tokens: int | None = None
    """Prompt tokens without an output token yet at which further requests
    are refused (--max-num-queued-tokens).
    """

    @classmethod
    def of(cls, config: SchedulerConfig) -> QueueLimits:
        """Return the limits of a configuration."""
        return cls(config.max_waiting, config.max_num_queued_reqs, config.max_num_queued_tokens)

    def check(self, scheduler: Scheduler | Journal, num_new: int) -> None:
        """Raise `QueueFull` if a request with `num_new` sequences exceeds a
        limit.
        """
        num_running = scheduler.num_running
        num_waiting = scheduler.num_waiting
        if self.waiting is not None:
            free_rows = scheduler.limits.max_num_seqs - num_running
            if num_waiting >= self.waiting + free_rows:
                raise _full(f"more than {self.waiting} requests would wait (--max-waiting)")
        if self.unfinished is not None and num_running + num_waiting + num_new > self.unfinished:
            raise _full(
                f"more than {self.unfinished} requests would wait or run (--max-num-queued-reqs)"
            )
        if self.prefill_tokens is not None:
            num_tokens = scheduler.num_prefill_tokens
            if num_tokens >= self.prefill_tokens:
                raise _full(
                    f"{num_tokens} prompt tokens wait or are computed, the limit is "
                    f"{self.prefill_tokens} (--max-num-queued-tokens)"
                )


NO_LIMITS: Final = QueueLimits()


def _full(reason: str) -> QueueFull:
    return QueueFull(f"the queue is full: {reason}; send it again later.")

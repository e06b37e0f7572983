"""Limits of the requests that an engine holds.

Further ones are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.errors import QueueFull

if TYPE_CHECKING:
    from core.config.sections import SchedulerConfig
    from core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of queued requests; None: no limit."""

    waiting: int | None = None
    """Waiting requests (--max-waiting)."""
    unfinished: int | None = None
    """Waiting and running requests (--max-num-queued-reqs)."""
    prompt_tokens: int | None = None
    """Prompt tokens without an output token yet (--max-num-queued-tokens)."""

    @classmethod
    def of(cls, config: SchedulerConfig) -> QueueLimits:
        """Return the limits of a configuration."""
        return cls(
            config.max_waiting,
            config.max_num_queued_reqs,
            config.max_num_queued_tokens,
        )

    def check(
        self,
        scheduler: Scheduler,
        num_new: int,
    ) -> None:
        """Check a request with `num_new` sequences.

        Raises `QueueFull` if it exceeds a limit.
        """
        num_running = scheduler.num_running
        num_waiting = scheduler.num_waiting
        limit = self.waiting
        if limit is not None:
            rows = scheduler.limits.max_num_seqs
            if num_waiting >= limit + rows - num_running:
                raise _full(
                    f"more than {limit} requests would wait",
                    "--max-waiting",
                )
        limit = self.unfinished
        num_all = num_running + num_waiting + num_new
        if limit is not None and num_all > limit:
            raise _full(
                f"more than {limit} requests would wait or run",
                "--max-num-queued-reqs",
            )
        limit = self.prompt_tokens
        if limit is not None:
            num_tokens = scheduler.num_prefill_tokens
            if num_tokens >= limit:
                raise _full(
                    f"{num_tokens} prompt tokens are queued",
                    "--max-num-queued-tokens",
                )


NO_LIMITS: Final = QueueLimits()


def _full(reason: str, flag: str) -> QueueFull:
    text = f"the queue is full: {reason} ({flag})"
    return QueueFull(f"{text}; send it again later.")

"""Scheduling policies and the two halves of an extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.contracts.attention import ForwardBatch
    from core.contracts.sampling import SampleRows
    from core.step import StepPlan


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """What a scheduling policy may know of a request."""

    request_id: str
    priority: int
    arrival_s: float
    num_prompt_tokens: int
    num_preemptions: int


class SchedulingPolicy(Protocol):
    """Orders requests: a pure function. The core owns blocks and budget, so no policy can corrupt them.

    Constructed without arguments. Ties are broken by order of arrival.
    """

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the sort key: the smallest runs first, the largest is preempted first."""


class SchedulerExtension(Protocol):
    """The scheduler half of a feature. Every method is optional; those present are called.

    `request` is the scheduler's own record; extensions read `request_id`, `num_tokens`, `sampling`.
    """

    name: str

    def may_start(self, request: Any) -> bool:
        """Return False to park the request outside the queue until `Scheduler.wake(request_id)`."""

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available beyond the `num_local` found in the prefix cache (a remote cache)."""

    def extra_tokens(self, request: Any) -> int:
        """Return tokens to plan beyond the known ones (drafts)."""

    def planned(self, plan: StepPlan) -> bytes | None:
        """See the plan before it leaves; return the payload for the worker half. No side effect on it."""

    def finished(self, request: Any) -> bool:
        """The request ended; return True to keep its blocks until `Scheduler.release(request_id)`."""

    def result(self, payload: bytes) -> None:
        """Take what the worker half returned."""


class RunnerExtension(Protocol):
    """The worker half of a feature. Every method is optional; those present are called."""

    name: str

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """See the batch before the model runs."""

    def before_sample(self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None) -> torch.Tensor:
        """Return the logits to sample from."""

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the payload for the scheduler half."""

"""Scheduling policies and the two halves of an extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
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


class MayStart(IntEnum):
    """What `may_start` answers; True and False serve for START and PARK."""

    PARK = 0
    """Wait outside the queue until `Scheduler.wake(request_id)`."""
    START = 1
    RESERVE = 2
    """Likewise, but with blocks for every known token, which `reserved` is shown."""


class SchedulerExtension(Protocol):
    """The scheduler half of a feature. Every method is optional; those present are called.

    `request` is the scheduler's own record; extensions read `request_id`, `num_tokens`, `sampling`. From within
    its methods an extension calls the scheduler it was attached to; what happens elsewhere reaches the scheduler
    through the engine, which records it.
    """

    name: str
    watches_tokens: bool
    """Optional. False: it never looks at `num_tokens` of running requests, so that these need not be kept up to date."""

    def attach(self, scheduler: Any) -> None:
        """Take the scheduler to call `wake`, `release` and `recompute` of; called once, before all others.

        From a thread of the extension's own call `wake_soon` only.
        """

    def may_start(self, request: Any) -> bool | MayStart:
        """Say whether the request at the head of the queue may start.

        Asked again after every wake and preemption, and in the next step where this one had no room for it.
        While blocks are reserved, others may have to wait until the wake: it must not depend on their progress.
        A request that reserves waits at the head until its blocks are free, keeps them until it starts or ends,
        and once woken starts before all others. It starts at once, without `reserved`, where that many blocks
        never are free (a local attention's may be fewer than a prompt's).
        """

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """See the block ids per KV group that a request is parked with, for its tokens from the first to the last.

        The first `num_local` tokens are in the cache, in blocks shared with others: write behind them only. Keep
        the blocks in `finished` if the request ends while something still writes to them.
        """

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available beyond the first `num_local`: in a remote cache, or loaded since `reserved`.

        Every block that a token behind them reads must hold all of its tokens: it may be found by others.
        """

    def extra_tokens(self, request: Any) -> int:
        """Return tokens to plan beyond the known ones (drafts)."""

    def planned(self, plan: StepPlan) -> bytes | None:
        """See the plan before it leaves; return the payload for the worker half. No side effect on it."""

    def finished(self, request: Any) -> bool:
        """The request ended; return True to keep its blocks until `Scheduler.release(request_id)`."""

    def result(self, payload: bytes) -> None:
        """Take what the worker half returned, before the tokens of the step are read.

        Of a load that failed call `Scheduler.recompute(request_id, position)` here, and no wrong token leaves.
        """


class RunnerExtension(Protocol):
    """The worker half of a feature. Every method is optional; those present are called."""

    name: str

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """See the batch before the model runs."""

    def before_sample(self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None) -> torch.Tensor:
        """Return the logits to sample from."""

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the payload for the scheduler half."""

"""Scheduling policies, and the scheduler half of a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from core.step import StepPlan


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request as a scheduling policy sees it."""

    request_id: str
    priority: int
    arrival_s: float
    num_prompt_tokens: int
    num_preemptions: int


class SchedulingPolicy(Protocol):
    """Orders requests: a pure function. Constructed with the engine's config,
    if it takes one.

    The core owns blocks and token budget. Ties are broken by order of arrival.
    """

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the sort key: the smallest runs first, the largest is
        preempted first.
        """


class MayStart(IntEnum):
    """Answer of `may_start`; True and False mean START and PARK."""

    PARK = 0
    """Wait outside the queue until `Scheduler.wake(request_id)`."""
    START = 1
    RESERVE = 2
    """Park with blocks for every known token; `reserved` receives them."""


class RunningRows(Protocol):
    """The decode rows of the step being planned, as extensions see them. Read-only."""

    rows: npt.NDArray[np.int64]
    """Row numbers; each row has one known token to compute."""

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """Number of known tokens, by row number."""

    @property
    def planned(self) -> npt.NDArray[np.int64]:
        """Number of leading tokens computed or planned, by row number, without draft tokens."""

    @property
    def num_unverified(self) -> npt.NDArray[np.int64]:
        """Number of draft tokens in flight, by row number; the row may advance by up to as many."""

    def request(self, row: int) -> Any:
        """Return the scheduler's record of the request in a row."""

    def tokens(self, row: int) -> npt.NDArray[np.int32]:
        """Return the known tokens of a row."""


class BlockLoad(Protocol):
    """A block that was allocated for the contents of a tier and must be
    filled from there.
    """

    group: int
    key: bytes
    block: int


class SchedulerExtension(Protocol):
    """The scheduler half of a feature. Every method is optional; those
    present are called.

    `request` is the scheduler's record. Extensions may read `request_id`, `sampling`,
    `features`, `prompt_len`, `num_tokens`, `tokens`, `row` (-1: none), `state`, `rank`,
    `planned`, `last_step`, `num_preemptions`, `keys`, `tables`, `num_published`, and `source`, the
    original `EngineRequest`. Bytes in `request.feature_outputs`, by feature, reach the
    admission half (`RequestDelta.features`), at the request's end at the latest.

    An extension calls its scheduler only from within its own methods. Other
    events reach the scheduler through the engine, which records them. With
    `decides = False` it only answers calls; replays go without it.
    """

    name: str

    def attach(self, scheduler: Any) -> None:
        """Receive the scheduler to call `wake`, `loaded`, `release` and
        `recompute` on.

        Called once, before all others. Threads of the extension may only call
        `call_soon(method, *arguments)`. `scheduler.kv` accepts a tier (`add_tier`) and
        listeners (`add_listener`); `pin` holds blocks without a request.
        """

    def wrap(self, scheduler: Any) -> Any:
        """Return what the engine calls instead of the scheduler.

        A recorder, for example. Called once, after `attach`.
        """

    def arrived(self, request: Any) -> None:
        """A request is about to be queued; `finished` follows for each one."""

    def may_start(self, request: Any) -> bool | MayStart:
        """Return whether the request at the head of the queue may start.

        Called again after every wake and preemption, and in the next step if this one
        has no room for the request. Reserved blocks may block other requests until the
        wake, so the wake must not depend on their progress. A request that reserves
        waits at the head of the queue until its blocks are free, and starts before all
        others once woken. It starts at once, without `reserved`, when that many blocks
        can never be free (a sliding window may need fewer than the prompt has).
        """

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """Receive the block ids per KV group of a parked request, for all its
        tokens.

        The first `num_local` tokens are cached in shared blocks: write only after them.
        Return True from `finished` to keep the blocks while something still writes to
        them.
        """

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return the number of tokens available beyond the first `num_local`.

        They are in a remote cache, or were loaded after `reserved`. Every block that a
        later token reads must be complete. Other requests find them once they are
        verified: after `Scheduler.loaded`, or when the request's first step has
        returned without `recompute`.
        """

    def load(self, request: Any, loads: Sequence[BlockLoad]) -> bool:
        """Start to fill the blocks with keys of this extension.

        True: they are filled before the worker reads them in the step of the next
        `planned` call. False: the request waits with its blocks for `Scheduler.loaded`,
        or for `recompute` and `wake` after a failure.
        """

    def num_draft_tokens(self, rows: RunningRows) -> Sequence[int] | npt.NDArray[np.int64] | None:
        """Return the number of draft tokens to verify for each of
        `rows.rows`; None: none.

        The worker half writes the draft tokens. The scheduler may grant fewer
        (`StepPlan.num_draft_tokens`). Called once per step.
        """

    def is_active(self) -> bool:
        """Return whether to call `limits` and `num_draft_tokens` in this
        step.

        Must be cheap. When no extension is active, unchanged decode steps take the fast
        path. Default: always active.
        """

    def limits(self, rows: RunningRows) -> Mapping[int, int] | None:
        """Return the maximum number of tokens per row number in this step; 0
        skips the row.

        Later extensions do not see such rows.
        The engine idles when no row is left; call `call_soon("wake", request_id)` when
        a row may continue.
        """

    def prefill_chunk(self, request: Any, start: int, count: int) -> int:
        """Return how many of these tokens of a prompt a step may take.

        Called for each chunk, the first one included. 0: the prompt waits.
        The step may take fewer.
        """

    def planned(self, plan: StepPlan) -> bytes | None:
        """Return the payload for the worker half; the plan must not be changed."""

    def pending(self) -> bool:
        """Return whether the worker half needs a message even if no row can be computed."""

    def finished(self, request: Any) -> bool:
        """The request ended; return True to keep its blocks until `Scheduler.release`."""

    def result(self, payload: bytes) -> None:
        """Receive a worker half's payload (one call per rank) before the
        step's tokens are read.

        Also receives its messages between steps. After a failed load, call
        `Scheduler.recompute(request_id, position)` here: then no wrong token is
        returned.
        """

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer the call `<name>.<verb>` between two steps; the worker
        halves receive it next.

        Raise an `EngineError` to reject it: the caller gets the error, the worker
        halves nothing.
        """

    def call_ended(self, verb: str, data: bytes, ranks: Sequence[bytes] | None) -> bytes | None:
        """Receive the ranks' answers to a call; None: they raised.

        Unless None, the answer replaces that of `call`.
        """

    def close(self) -> None:
        """Stop all background work; no other method follows. May be called twice."""

"""Scheduling policies and the two halves of an extension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from core.config import EngineConfig
    from core.contracts.attention import ForwardBatch
    from core.contracts.models import BuildContext, Model, ModelSource
    from core.contracts.parallel import ParallelGroup, Pipeline
    from core.contracts.runners import RunnerBatch
    from core.contracts.sampling import SampleRows
    from core.model_spec.kv import KVLayout, LayerKV
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
    """Orders requests: a pure function. The core owns blocks and budget, so no policy can corrupt
    them.

    Constructed with the engine's config, if it takes an argument. Ties are broken by order of
    arrival.
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


class RunningRows(Protocol):
    """The rows that decode in the step being planned, as extensions see them.

    Read it, never change it.
    """

    rows: npt.NDArray[np.int64]
    """Their numbers: each has one known token to compute."""

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """Known tokens, by row number."""

    @property
    def planned(self) -> npt.NDArray[np.int64]:
        """Leading tokens whose keys and values are cached or planned, by row number; of guesses in
        flight none counts.
        """

    @property
    def in_flight(self) -> npt.NDArray[np.int64]:
        """Guesses in flight, by row number: the row may be further by as many, which only the
        worker knows.
        """

    def request(self, row: int) -> Any:
        """Return the scheduler's record of who has a row."""

    def tokens(self, row: int) -> npt.NDArray[np.int32]:
        """Return the known tokens of a row."""


class BlockLoad(Protocol):
    """A block that was taken for what a tier holds, and is to be filled by it."""

    group: int
    key: bytes
    block: int


class SchedulerExtension(Protocol):
    """The scheduler half of a feature. Every method is optional; those present are called.

    `request` is the scheduler's own record; extensions read `request_id`, `sampling`, `features`,
    `prompt_len`, `num_tokens`, `tokens`, `row` (-1: none), `state`, `rank`, `planned`,
    `num_preemptions`, `keys`, `tables`, `num_offered` and `source`, the request as it came. What
    they put into `news`, bytes by feature, reaches their half at the edge
    (`RequestDelta.features`), at the request's end at the latest. From within its methods an
    extension calls the scheduler it was attached to; what happens elsewhere reaches the scheduler
    through the engine, which records it.
    """

    name: str

    def attach(self, scheduler: Any) -> None:
        """Take the scheduler to call `wake`, `loaded`, `release` and `recompute` of; called once,
        before all others.

        From a thread of the extension's own call `soon(method, *arguments)` only. `scheduler.kv`
        takes a tier behind the cache (`add_tier`) and tells what it remembers and forgets
        (`watch`); `keep` holds blocks that no request has.
        """

    def arrived(self, request: Any) -> None:
        """See a request that is about to be queued; `finished` is called for each."""

    def may_start(self, request: Any) -> bool | MayStart:
        """Say whether the request at the head of the queue may start.

        Asked again after every wake and preemption, and in the next step where this one had no room
        for it. While blocks are reserved, others may have to wait until the wake: it must not
        depend on their progress. A request that reserves waits at the head until its blocks are
        free, keeps them until it starts or ends, and once woken starts before all others. It starts
        at once, without `reserved`, where that many blocks never are free (a local attention's may
        be fewer than a prompt's).
        """

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """See the block ids per KV group that a request is parked with, for its tokens from the
        first to the last.

        The first `num_local` tokens are in the cache, in blocks shared with others: write behind
        them only. Keep the blocks in `finished` if the request ends while something still writes to
        them.
        """

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available beyond the first `num_local`: in a remote cache, or loaded since
        `reserved`.

        Every block that a token behind them reads must hold all of its tokens. Others find them
        once they are known to be right: after `Scheduler.loaded`, or when the request's first step
        has returned and nobody has called `recompute`.
        """

    def load(self, request: Any, loads: Sequence[BlockLoad]) -> bool:
        """Fill the blocks that were taken for what tiers hold: those whose key is the extension's
        own.

        True: they will be filled before the worker reads anything in the step whose plan `planned`
        sees next. False: the request waits with its blocks until `Scheduler.loaded`, or until
        `recompute` and `wake` where it failed.
        """

    def guesses(self, rows: RunningRows) -> Sequence[int] | npt.NDArray[np.int64] | None:
        """Return how many tokens to compute behind the known one of each of `rows.rows`: the worker
        half writes guesses
        there. Fewer may be granted, as `StepPlan.guesses` says. Asked once in each step; None:
        none.
        """

    def steers(self) -> bool:
        """Say whether `limits` and `guesses` are to be asked in the step being planned; without it
        they always are.

        A moment's look: where nobody steers, steps in which nothing changes are planned for a
        fraction of the cost.
        """

    def limits(self, rows: RunningRows) -> Mapping[int, int] | None:
        """Return the most tokens that rows may compute in this step, by row number; 0: the row sits
        the step out.

        Where nobody is left to compute, the engine rests until something happens: call
        `soon("wake", request_id)` when a row may go on.
        """

    def planned(self, plan: StepPlan) -> bytes | None:
        """See the plan before it leaves; return the payload for the worker half.

        No side effect on it.
        """

    def pending(self) -> bool:
        """Say whether there is something for the worker half although nobody may compute: a plan
        without rows goes out.
        """

    def finished(self, request: Any) -> bool:
        """The request ended; return True to keep its blocks until `Scheduler.release(request_id)`."""

    def result(self, payload: bytes) -> None:
        """Take what a worker half returned (one call for each rank's), before the tokens of the
        step are read, or tells
        outside of steps.

        Of a load that failed call `Scheduler.recompute(request_id, position)` here, and no wrong
        token leaves.
        """

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer a call named `<name>.<verb>` between two steps; the worker halves of all ranks get
        it next.

        Raise an `EngineError` to refuse it: the caller gets that, and the worker halves nothing.
        """

    def close(self) -> None:
        """End whatever works beside the scheduler: nothing else is called any more.

        May be called twice.
        """


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """What a worker holds once its model is loaded, before memory is divided."""

    config: EngineConfig
    source: ModelSource
    model: Model
    context: BuildContext
    """What the model was built with: device, attention backend, ops, this rank's place among the
    others.
    """
    facts: Mapping[str, Any]
    """The platform's, by which implementations are chosen."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker holds once its memory is allocated, as it is shown to one feature."""

    config: EngineConfig
    model: Model
    batch: RunnerBatch
    layout: KVLayout
    memory: Mapping[tuple[int, int], torch.Tensor]
    """By (pool, slot), uint8 [num_blocks, bytes of a block]; those of this worker's layers.

    Spare blocks are the last.
    """
    caches: Sequence[Any]
    """Of the layers that the feature itself has added."""
    first_layer: int
    """Place in `ForwardBatch.attention` of the first of them."""
    group: ParallelGroup
    pipeline: Pipeline
    device: str
    tell: Callable[[bytes], None]
    """Tells the scheduler half something outside of steps, which gets it in `result`; from any
    thread.
    """
    wrap: Callable[[Model], Callable[[ForwardBatch], torch.Tensor]]
    """Returns what the platform calls in place of a model of the feature's own, so that small steps
    cost little.
    """


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step has sampled, on the device; its tokens are in the batch already."""

    rows: SampleRows
    """One entry per point."""
    tokens: torch.Tensor
    """[points] int64; those behind a guess that was wrong mean nothing."""
    accepted: torch.Tensor
    """[rows that sample] int64: how many of a row's tokens hold, 1 to all; the rows in the order of
    the points.
    """
    ends: torch.Tensor
    """[rows that sample] int64: position of each row's last token, which its next step computes
    first.
    """
    hidden: torch.Tensor
    """[points, hidden]: what the tokens were made of."""


class RunnerExtension(Protocol):
    """The worker half of a feature. Every method is optional; those present are called, on each
    rank.

    Whatever sees tensors is called in the order of the device's work, which at depth 2 is another
    thread than that which plans. Must not read device values back to the host.

    One that writes guesses may state `most_guesses`, those of one row in one step. Models with
    recurrent layers keep as many states more, and their rows get no guesses where nobody states it.
    One that lets rows go on in several ways at once may state `spare_blocks`: each group of
    attention has so many beside those of requests (`KVLayout.first_spare`). One feature may.
    """

    name: str

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the caching layers it adds behind the model's: a draft model's, for example.

        Called once.
        """

    def host_bytes(self, model: Model, config: EngineConfig) -> int:
        """Return what the feature may take of memory on this rank beside weights and cache: for a
        plan of it.

        The model has shapes, and no numbers.
        """

    def attach(self, parts: WorkerParts) -> None:
        """Take what the worker holds; called once, before the first step."""

    def rests(self, num_rows: int, payload: bytes | None) -> bool:
        """Say that a step, in which so many rows sample, can do without it: it is not called again
        in that step.

        Asked once a step, first of all. Where everybody rests, it is not noted where rows go on:
        whoever reads that may not rest in the step before.
        """

    def begin(self, payload: bytes | None) -> None:
        """A step begins: rows and tables are as the plan says, its tokens are not gathered yet.

        Guesses are written to `token_ids` here, or after the step before. Called in plans without
        rows, too.
        """

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """See the batch before the model runs; it may set `embeddings` and `rope_positions`.

        Whoever verifies guesses that are no chain sets `attention` and `positions` of the rows they
        are of, too.
        """

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """See what the model has made of the step's tokens: [num_tokens, hidden], good until the
        next step.

        A decoder that was asked to in `loaded` (`Decoder.tap`) has the streams before its layers
        behind the hidden states.
        """

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Return the logits to sample from, one row of them for each point.

        Whoever verifies guesses that are no chain sets their `rows.length_index` here.
        """

    def verify(
        self,
        rows: SampleRows,
        guessed: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payload: bytes | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the tokens to take [points] and which guesses are right, bool [points].

        Without it the sampled `tokens` are taken, and a guess is right if it is the token of its
        point. `guessed` is what stands behind each point, a guess everywhere but at the last point
        of a row, whose answer counts for nothing. `logits` are those that tokens were chosen from.
        Where guesses are no chain, a third tensor, int64 [points], says of which point each answer
        is: tokens that hold come first in their row, and all that is said of a point goes with it.
        Rows in `rows.processed` have no guesses but chains. Called in steps with guesses; the first
        feature that has it decides.
        """

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """See what was sampled. Called on the last stage of a pipeline only."""

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the payload for the scheduler half; called in every step, in plans without rows
        too.
        """

    def call(self, name: str, data: bytes) -> bytes | None:
        """Answer a call from outside of steps: the part of its name behind the feature's.

        None: it is not known.
        """

    def close(self) -> None:
        """End whatever works beside the worker, which has computed its last step; may be called
        twice.
        """

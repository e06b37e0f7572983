"""Executors and workers, and the worker half of a feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.contracts.attention import ForwardBatch
    from core.contracts.models import BuildContext, Model, ModelSource
    from core.contracts.platforms import Platform
    from core.contracts.runners import Pending, RunnerBatch
    from core.contracts.sampling import SampleRows
    from core.model_spec.kv import KVLayout, LayerKV
    from core.model_spec.parallel import ParallelGroup, Pipeline
    from core.step import StepPlan, StepResult, WorkerInfo

Join = Callable[["Platform"], "tuple[ParallelGroup, Pipeline]"]
"""Returns this rank's groups once the other ranks of the model have
joined.
"""


class Executor(Protocol):
    """Runs workers. Results come back in the order of the plans.

    Optional, with processes: `silence_s()` returns the seconds since the last
    heartbeat of the slowest one; `check_health()` raises `EngineDead` if one
    has ended.
    """

    depth: int
    """Maximum number of plans in flight; 1 disables asynchronous
    scheduling.
    """
    on_message: Callable[[str, bytes], None]
    """Callback set by the engine: receives messages of worker halves between
    steps.

    Called from any thread with (feature, data); an empty name has `check_health` called.
    """

    def start(self) -> WorkerInfo:
        """Build the model on every worker. May be slow; called once."""

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache on every worker."""

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan; there are never more than `depth` uncollected ones."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result.

        Raises if the step failed.
        """

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Call `<feature>.<verb>` of the worker halves on every rank, after
        the submitted plans.

        Returns the answers in the order of ranks. Raises the error that all ranks
        raise. If only some raise, the ranks have diverged: that is `EngineDead`.
        """

    def shutdown(self) -> None:
        """Release everything; may be called twice and in any state."""


class Worker(Protocol):
    """One rank: its model or stage, KV cache and rows. Constructed with
    (config, registry, source[, join]); without `join` it holds the whole model. One
    thread calls all methods.
    """

    on_message: Callable[[str, bytes], None]
    """Callback set by the executor: receives (feature, data) between steps,
    from any thread.
    """

    @property
    def reports(self) -> bool:
        """Return whether a worker half may answer steps, so that results of all ranks matter."""

    def start(self) -> WorkerInfo:
        """Build and load the model.

        Raises `ModelError` or `ConfigError` with one clear block.
        """

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Allocate the cache; `first_layer` is the layout index of this stage's first KV layer."""

    def execute(self, plan: StepPlan) -> Pending:
        """Start one step, and possibly finish it.

        The next step may start before `Pending.get` of this one, but results are
        collected in order. A failed step raises here or in `get`; the next step runs. A
        stage that did its part raises `LastStageFailed` (`core.errors`).
        """

    def call(self, name: str, data: bytes) -> bytes | None:
        """Return the worker half's answer to `feature.verb`, or None without one."""

    def close(self) -> None:
        """Stop background threads; may be called twice."""


# --- the worker half of a feature -------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """A worker after its model is loaded and before memory is divided."""

    config: EngineConfig
    source: ModelSource
    model: Model
    context: BuildContext
    """Device, attention backend, ops and parallel groups that the model was
    built with.
    """
    facts: Mapping[str, Any]
    """Facts of the platform, which select implementations."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker after its memory is allocated, as one feature sees it."""

    config: EngineConfig
    model: Model
    batch: RunnerBatch
    layout: KVLayout
    memory: Mapping[tuple[int, int], torch.Tensor]
    """KV memory of this worker's layers by (pool, slot): uint8 [num_blocks,
    block bytes].

    Spare blocks come last.
    """
    caches: Sequence[Any]
    """Caches of the layers that the feature added."""
    first_layer: int
    """Index of the first of those layers in `ForwardBatch.attention`."""
    group: ParallelGroup
    pipeline: Pipeline
    device: str
    send: Callable[[bytes], None]
    """Sends a message to the scheduler half between steps, from any thread;
    see `result`.
    """
    wrap: Callable[[Model], Callable[[ForwardBatch], torch.Tensor]]
    """Returns the platform's replacement of a model's call, such as a CUDA
    graph of it.
    """


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens of a step, on the device; they are in the batch
    already.
    """

    rows: SampleRows
    """One entry per position that was sampled."""
    tokens: torch.Tensor
    """[entries] int64; undefined after a rejected draft token."""
    accepted: torch.Tensor
    """[rows that sample] int64: number of valid tokens per row, at least 1,
    in row order.
    """
    next_positions: torch.Tensor
    """[rows that sample] int64: position of each row's last token; its next
    step starts there.
    """
    hidden: torch.Tensor
    """[entries, hidden]: the hidden states that were sampled from."""


class RunnerExtension(Protocol):
    """The worker half of a feature, on each rank. Every method is optional.

    Methods with tensors run in the order of the device's work, which at depth 2 is
    another thread than the planning one. They must not read device values back to the
    host.

    One that writes draft tokens may declare `max_draft_tokens` per row and step. Models
    with recurrent layers keep that many additional states; without it their rows get no
    draft tokens. One that branches sequences may declare `spare_blocks`, the number of
    additional blocks of each attention group (`KVLayout.first_spare_block`). Only one
    feature may do so.
    """

    name: str

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Return the KV layers it adds after the model's, such as a draft model's.

        Called once.
        """

    def host_bytes(self, model: Model, config: EngineConfig) -> int:
        """Return the memory of the feature on this rank, in bytes, for a
        memory plan.

        The model has shapes but no weights.
        """

    def attach(self, parts: WorkerParts) -> None:
        """Receive the worker's parts; called once, before the first step."""

    def skips_step(self, num_rows: int, payload: bytes | None) -> bool:
        """Return whether to skip the feature in this step, in which
        `num_rows` rows sample.

        Called first in each step. When all features skip a step, the rows' last
        positions are not updated: a feature that reads them must not skip the step
        before.
        """

    def begin(self, payload: bytes | None) -> None:
        """A step begins: rows and tables match the plan, input tokens are not
        gathered yet.

        Draft tokens are written to `token_ids` here, or after the previous step. Also
        called for plans without rows.
        """

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Change the batch before the model runs: `embeddings` and
        `rope_positions`.

        Verification of draft trees also sets `attention` and `positions` of its rows.
        """

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payload: bytes | None
    ) -> None:
        """Receive the hidden states [num_tokens, hidden], valid until the
        next step.

        Hidden states captured by `Decoder.capture_hidden_states` follow the last
        layer's.
        """

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Return the logits to sample from, one row per entry.

        Verification of draft trees sets `rows.length_index` of its rows here.
        """

    def verify(
        self,
        rows: SampleRows,
        draft_tokens: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payload: bytes | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the tokens to keep [entries] and which draft tokens are
        accepted, bool [entries].

        Default: keep the sampled `tokens`; a draft token is accepted if it equals the
        token sampled at its entry. `draft_tokens` is the token after each entry; at the
        last entry of a row it is no draft token and its answer is ignored. `logits` are
        the sampled ones. For draft trees a third tensor, int64 [entries], maps each
        answer to its entry: accepted tokens come first in their row. Rows in
        `rows.processed` have chains only. Called in steps with draft tokens; the first
        feature with this method decides.
        """

    def sampled(self, sampled: Sampled, payload: bytes | None) -> None:
        """Receive the sampled tokens. Called on the last pipeline stage only."""

    def after_sample(self, payload: bytes | None) -> bytes | None:
        """Return the payload for the scheduler half; called in every step."""

    def call(self, name: str, data: bytes) -> bytes | None:
        """Answer a call between steps (the verb without the feature); None: unknown verb."""

    def close(self) -> None:
        """Stop all background work after the last step; may be called twice."""

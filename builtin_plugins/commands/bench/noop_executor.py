"""No-op executor of `engine bench step`, as a plugin that loads only when named.

Every sampled row gets a constant token, so the engine is timed without a model.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from core.api import EngineConfig, Entry, hookimpl
from core.api.execution import StepPlan, StepResult, WorkerInfo
from core.api.features import SchedulerExtension
from core.api.models import ModelSource
from core.model_spec.kv import FullAttention, KVLayout, LayerKV

if TYPE_CHECKING:
    from core.api import Registry

VOCAB: Final = 50_000
TOKEN: Final = 7
MEMORY_BYTES: Final = 1 << 40
"""KV memory to report; nothing is allocated."""


class Watcher:
    """An extension that reads every plan and sends nothing."""

    name = "watcher"

    def planned(self, plan: StepPlan) -> bytes | None:
        """Read a plan."""
        return None


class Drafter:
    """An extension that requests a number of draft tokens for every row."""

    name = "drafter"

    def __init__(self, count: int) -> None:
        self._count = count

    def num_draft_tokens(self, rows: Any) -> Any:
        """Return the number for each row."""
        return rows.rows * 0 + self._count


class NoopExecutor:
    """Runs ahead as `--async-scheduling` says; a step costs well under a microsecond."""

    def __init__(self, config: EngineConfig, registry: Registry, source: ModelSource) -> None:
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self._num_rows = config.scheduler.max_num_seqs or 1
        self._tokens = [TOKEN] * self._num_rows
        self._plans: deque[StepPlan] = deque()
        self._num_drafts: list[int] = []
        self._accepted: list[int] = []
        self._accepted_tokens: list[int] = []

    def start(self) -> WorkerInfo:
        """Return the info of a model with one layer."""
        layer = LayerKV("layers.0", FullAttention(8, 128, "bfloat16"))
        return WorkerInfo(layers=[layer], kv_memory_bytes=MEMORY_BYTES, vocab_size=VOCAB)

    def allocate(self, layout: KVLayout) -> None:
        """Allocate nothing."""

    def submit(self, plan: StepPlan) -> None:
        """Queue the plan."""
        self._plans.append(plan)

    def collect(self) -> StepResult:
        """Return a constant token per sampled row; half of the draft tokens are accepted.

        Raises `IndexError` for rows outside the batch.
        """
        plan = self._plans.popleft()
        for new in plan.new:
            if not 0 <= new.row < self._num_rows:
                raise IndexError(f"row {new.row} is outside the batch of {self._num_rows}.")
        rows = (
            [*plan.decode_rows, *(plan.rows[i] for i in plan.samples)]
            if plan.samples
            else plan.decode_rows
        )
        if plan.num_draft_tokens:
            if plan.num_draft_tokens != self._num_drafts:
                self._num_drafts = plan.num_draft_tokens
                self._accepted = [1 + count // 2 for count in plan.num_draft_tokens]
                self._accepted_tokens = [TOKEN] * sum(self._accepted)
            return StepResult(plan.step, rows, self._accepted_tokens, accepted=self._accepted)
        return StepResult(plan.step, rows, self._tokens[: len(rows)])

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Return no answers."""
        return []

    def shutdown(self) -> None:
        """Drop the plans."""
        self._plans.clear()


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the no-op executor."""
    target = "builtin_plugins.commands.bench.noop_executor:NoopExecutor"
    return [
        Entry(
            "stub",
            target,
            "no-op executor for measuring the engine",
        )
    ]


@hookimpl
def engine_scheduler_extensions(
    config: EngineConfig, registry: Registry
) -> list[SchedulerExtension]:
    """Return the extension that is being measured."""
    found: list[SchedulerExtension] = registry.shared("bench.step", list)
    return list(found)

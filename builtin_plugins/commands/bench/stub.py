"""An executor that computes nothing: every row that samples gets a token at once.

Times the engine without a model.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from core.api import (
    EngineConfig,
    FullAttention,
    KVLayout,
    LayerKV,
    ModelSource,
    StepPlan,
    StepResult,
    WorkerInfo,
)

VOCAB: Final = 50_000
TOKEN: Final = 7
MEMORY_BYTES: Final = 1 << 40
"""Nothing is allocated."""


class Watcher:
    """An extension that looks at every plan and has nothing to say of it."""

    name = "watcher"

    def planned(self, plan: StepPlan) -> bytes | None:
        """Look at a plan."""
        return None


class Guesser:
    """An extension that asks for guesses behind every row's known token."""

    name = "guesser"

    def __init__(self, count: int) -> None:
        self._count = count

    def guesses(self, rows: Any) -> Any:
        """Return as many for each row."""
        return rows.rows * 0 + self._count


class StubExecutor:
    """Plans as far ahead as `--async-scheduling` says. A step of it costs well under a microsecond."""

    def __init__(self, config: EngineConfig, registry: Any, source: ModelSource) -> None:
        self.depth = 2 if config.scheduler.async_scheduling else 1
        self._num_rows = config.scheduler.max_num_seqs or 1
        self._tokens = [TOKEN] * self._num_rows
        self._plans: deque[StepPlan] = deque()
        self._guesses: list[int] = []
        self._accepted: list[int] = []
        self._right: list[int] = []

    def start(self) -> WorkerInfo:
        """Say what a model of one layer would."""
        layer = LayerKV("layers.0", FullAttention(8, 128, "bfloat16"))
        return WorkerInfo(layers=[layer], kv_memory_bytes=MEMORY_BYTES, vocab_size=VOCAB)

    def allocate(self, layout: KVLayout) -> None:
        """Allocate nothing."""

    def submit(self, plan: StepPlan) -> None:
        """Keep the plan."""
        self._plans.append(plan)

    def collect(self) -> StepResult:
        """Return the same token for every row that samples; half of what is guessed holds.

        Raises for rows no batch has.
        """
        plan = self._plans.popleft()
        for new in plan.new:
            if not 0 <= new.row < self._num_rows:
                raise IndexError(f"row {new.row} is outside the batch of {self._num_rows}.")
        rows = (
            [*plan.steady, *(plan.rows[i] for i in plan.samples)] if plan.samples else plan.steady
        )
        if plan.guesses:
            if plan.guesses != self._guesses:
                self._guesses = plan.guesses
                self._accepted = [1 + guessed // 2 for guessed in plan.guesses]
                self._right = [TOKEN] * sum(self._accepted)
            return StepResult(plan.step, rows, self._right, accepted=self._accepted)
        return StepResult(plan.step, rows, self._tokens[: len(rows)])

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Nobody answers."""
        return []

    def shutdown(self) -> None:
        """Forget the plans."""
        self._plans.clear()

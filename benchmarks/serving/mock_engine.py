"""Plugin with a mock executor: real scheduler and engine process, random tokens at a pace.

For measurements of the frontend. Load it as a file: `--plugins ./mock_engine.py
--distributed-executor-backend mock`.
"""

from __future__ import annotations

import random
import time
from typing import Annotated, Any, Final

from builtin_plugins.commands.bench.noop_executor import NoopExecutor
from core.api import EngineConfig, Entry, Option, Range, hookimpl
from core.api.execution import StepPlan, StepResult
from core.api.models import ModelSource

TOKENS: Final = range(300, 3000)
"""Ordinary tokens of the demo model."""
POOL: Final = 4096
"""Number of random tokens, sampled once."""


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the entry of the mock executor."""
    return [Entry("mock", MockExecutor, "random tokens at a given pace; for measuring front ends")]


@hookimpl
def engine_options() -> list[Option]:
    """Return the pace option."""
    text = "Steps a second; default: as many as the engine makes."
    return [Option("mock_steps_per_second", Annotated[float, Range(0.001, 1e6)] | None, None, text)]


class MockExecutor(NoopExecutor):
    """Returns a random token per sampled row, no faster than the pace."""

    def __init__(self, config: EngineConfig, registry: Any, source: ModelSource) -> None:
        super().__init__(config, registry, source)
        pace = config.options.get("mock_steps_per_second")
        self._step_s = 1 / pace if pace else 0.0
        self._due_s = 0.0
        self._random = random.Random(0).choices(TOKENS, k=POOL)

    def collect(self) -> StepResult:
        """Return random tokens when they are due."""
        plan: StepPlan = self._plans[0]
        found = super().collect()
        if wait_s := max(0.0, self._due_s - time.monotonic()):
            time.sleep(wait_s)
        self._due_s = max(self._due_s + self._step_s, time.monotonic() - self._step_s)
        at = plan.step * 61 % (POOL // 2)
        return StepResult(
            found.step, found.rows, self._random[at : at + len(found.rows)], accepted=found.accepted
        )

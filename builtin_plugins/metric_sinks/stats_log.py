"""A log line for every ten seconds of work: requests, tokens per second, KV cache.

The step that ends an interval writes the line; no thread is needed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from core.api import EngineConfig, Entry, Option, Range, hookimpl
from core.api.telemetry import RequestStats, StepStats, TokenStats

log = logging.getLogger(__name__)


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [
        Entry(
            "stats_log", StatsLog, "a log line for every ten seconds of work (--log-stats-interval)"
        )
    ]


@hookimpl
def engine_options() -> list[Option]:
    help = "Seconds of work between two log lines about it; 0: none."
    return [Option("log_stats_interval", Annotated[float, Range(0, 1e6)], 10.0, help)]


@dataclass(slots=True)
class _Totals:
    """Totals since the start."""

    prompt: int = 0
    """Tokens of prompts with a delivered output token."""
    generated: int = 0
    computed: int = 0
    """Positions of prompts and outputs, also of prompts that are not complete yet."""
    queried: int = 0
    cached: int = 0
    preemptions: int = 0


class StatsLog:
    """Logs rates of an interval of work; time without running or waiting requests is left out."""

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s: float = config.options.get("log_stats_interval", 10.0)
        self._clock = clock
        self._busy_s = 0.0
        """Time of work in this interval up to the last step, in seconds."""
        self._last_s: float | None = None
        """End of the last step; None: no requests were left after it."""
        self._last_steps: dict[int, StepStats] = {}
        """Last step of each engine."""
        self._now = _Totals()
        self._logged = _Totals()
        """Totals at the last log line."""

    def step(self, stats: StepStats) -> None:
        """Count a step, and write the line at the end of an interval."""
        if not self._interval_s:
            return
        now_s = self._clock()
        self._busy_s += stats.step_s if self._last_s is None else now_s - self._last_s
        self._last_steps[stats.engine] = stats
        is_busy = stats.num_running or any(
            last.num_running or last.num_waiting for last in self._last_steps.values()
        )
        self._last_s = now_s if is_busy else None
        self._now.computed += stats.computed_tokens
        self._now.queried += stats.queried_tokens
        self._now.cached += stats.cached_tokens
        self._now.preemptions += stats.preemptions
        if self._busy_s >= self._interval_s:
            self._write([*self._last_steps.values()])

    def tokens(self, stats: TokenStats) -> None:
        """Count delivered tokens. Runs in another thread than `step`, on other totals."""
        self._now.prompt += stats.prompt_tokens
        self._now.generated += stats.generated_tokens

    def request(self, stats: RequestStats) -> None:
        """Ignore requests."""

    def _write(self, engines: Sequence[StepStats]) -> None:
        before = self._logged
        now = replace(self._now)
        self._logged = now
        busy_s = self._busy_s
        self._busy_s = 0.0
        queried = now.queried - before.queried
        hits = "not used"
        if queried:
            hits = f"{100 * (now.cached - before.cached) / queried:.1f}% hits"
        log.info(
            "%d running, %d waiting; prompts %.1f tokens/s, answers %.1f tokens/s, "
            "computed %.1f tokens/s; KV cache %.1f%% used, prefix cache %s, %d preemptions",
            sum(last.num_running for last in engines),
            sum(last.num_waiting for last in engines),
            (now.prompt - before.prompt) / busy_s,
            (now.generated - before.generated) / busy_s,
            (now.computed - before.computed) / busy_s,
            100 * sum(last.kv_usage for last in engines) / len(engines),
            hits,
            now.preemptions - before.preemptions,
        )

"""A log line every ten seconds of work: what runs and waits, tokens per second, the KV cache. None
while nothing is asked.

Knows totals and a clock; no thread: the step that ends an interval writes its line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from core.api import (
    EngineConfig,
    Entry,
    Option,
    RequestStats,
    StepStats,
    TokenStats,
    Within,
    hookimpl,
)

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
    return [Option("log_stats_interval", Annotated[float, Within(0, 1e6)], 10.0, help)]


@dataclass(slots=True)
class _Totals:
    """What there has been since the start."""

    prompt: int = 0
    generated: int = 0
    queried: int = 0
    cached: int = 0
    preemptions: int = 0


class StatsLog:
    """Logs what an interval has brought.

    Time in which nothing runs or waits does not count, so rates are those of work.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s: float = config.options.get("log_stats_interval", 10.0)
        self._clock = clock
        self._busy_s = 0.0
        """Of this interval, up to the last step."""
        self._last_s: float | None = None
        """When the last step ended; None: nothing was left to do after it."""
        self._now = _Totals()
        self._told = _Totals()
        """As the last line left them."""

    def step(self, stats: StepStats) -> None:
        """Count a step, and write the line when it is time."""
        if not self._interval_s:
            return
        now_s = self._clock()
        self._busy_s += stats.step_s if self._last_s is None else now_s - self._last_s
        self._last_s = now_s if stats.num_running or stats.num_waiting else None
        self._now.queried += stats.queried_tokens
        self._now.cached += stats.cached_tokens
        self._now.preemptions += stats.preemptions
        if self._busy_s >= self._interval_s:
            self._write(stats)

    def tokens(self, stats: TokenStats) -> None:
        """Count what clients got; from another thread than steps, and it writes what no step does."""
        self._now.prompt += stats.prompt_tokens
        self._now.generated += stats.generated_tokens

    def request(self, stats: RequestStats) -> None:
        """Pass requests over."""

    def _write(self, stats: StepStats) -> None:
        told = self._told
        seen = replace(self._now)
        self._told = seen
        busy_s = self._busy_s
        self._busy_s = 0.0
        queried = seen.queried - told.queried
        log.info(
            "%d running, %d waiting; prompts %.1f tokens/s, answers %.1f tokens/s; KV cache %.1f%% "
            "used, "
            "prefix cache %s, %d preemptions",
            stats.num_running,
            stats.num_waiting,
            (seen.prompt - told.prompt) / busy_s,
            (seen.generated - told.generated) / busy_s,
            100 * stats.kv_usage,
            f"{100 * (seen.cached - told.cached) / queried:.1f}% hits" if queried else "not asked",
            seen.preemptions - told.preemptions,
        )

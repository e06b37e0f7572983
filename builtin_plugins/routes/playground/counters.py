"""Counters of the playground: KV blocks, plugin faults, totals of steps and tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from builtin_plugins.metric_sinks.api import plugin_faults
from core.api import EngineConfig, InvalidRequest, Registry
from core.api.telemetry import RequestStats, StepStats, TokenStats

NAME: Final = "playground"


class BlockCounter:
    """Scheduler extension that counts KV blocks on request."""

    name = NAME

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def attach(self, scheduler: Any) -> None:
        """Store the KV manager."""
        self._kv = scheduler.kv

    def call(self, verb: str, data: bytes) -> bytes:
        """Return blocks by state and faults by plugin, as JSON, for `playground.blocks`."""
        if verb != "blocks":
            raise InvalidRequest("name", f"{NAME} knows blocks, not {verb!r}.")
        return msgspec.json.encode(
            {"blocks": count_blocks(self._kv), "faults": plugin_faults(self._registry)}
        )


def count_blocks(kv: Any) -> dict[str, int]:
    """Return the number of used, cached and free blocks; cached blocks are not in use.

    Takes some milliseconds for a million blocks.
    """
    used = cached = idle = 0
    for index, pool in enumerate(kv.pools):
        refs = pool.refs
        used += len(refs) - refs.count(0)
        idle += pool.num_free
        groups = (i for i, group in enumerate(kv.layout.groups) if group.pool == index)
        for group in groups:
            cached += sum(not refs[block] for block in pool.cached_blocks(group).values())
    return {"used": used, "cached": cached, "free": idle - cached}


_FAILED: Final = ("abort", "error")


class Totals:
    """Metric sink that sums up steps, tokens and requests since the start."""

    def __init__(self, config: EngineConfig) -> None:
        self._steps = self._computed_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._preemptions = self._ended = self._failed = 0
        self._step_s = 0.0
        self._last_steps: dict[int, StepStats] = {}
        self._generated_by: Counter[int] = Counter()

    def step(self, stats: StepStats) -> None:
        """Add one engine step; one without time is not counted."""
        self._last_steps[stats.engine] = stats
        self._steps += bool(stats.step_s)
        self._step_s += stats.step_s
        self._computed_tokens += stats.computed_tokens
        self._preemptions += stats.preemptions

    def tokens(self, stats: TokenStats) -> None:
        """Add the tokens of one step."""
        self._generated_tokens += stats.generated_tokens
        self._generated_by[stats.engine] += stats.generated_tokens
        self._prompt_tokens += stats.prompt_tokens
        self._cached_tokens += stats.cached_tokens

    def request(self, stats: RequestStats) -> None:
        """Add one ended request."""
        self._ended += 1
        self._failed += stats.finish_reason in _FAILED

    def of_engine(self, rank: int) -> dict[str, int]:
        """Return the requests of an engine now, and its generated tokens since the start."""
        last = self._last_steps.get(rank)
        return {
            "running": last.num_running if last is not None else 0,
            "waiting": last.num_waiting if last is not None else 0,
            "generated_tokens": self._generated_by[rank],
        }

    def as_json(self) -> dict[str, Any]:
        """Return the totals by name; times are in seconds."""
        return {
            "steps": self._steps,
            "step_s": self._step_s,
            "computed_tokens": self._computed_tokens,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
            "generated_tokens": self._generated_tokens,
            "preemptions": self._preemptions,
            "ended_requests": self._ended,
            "failed_requests": self._failed,
        }

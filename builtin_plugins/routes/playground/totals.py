"""Totals of steps and tokens since the start.

Who looks twice knows rates, however many others look.
"""

from __future__ import annotations

from typing import Any, Final

from core.api import EngineConfig, RequestStats, StepStats, TokenStats

_FAILED: Final = ("abort", "error")


class Totals:
    """A metric sink that only adds up."""

    def __init__(self, config: EngineConfig) -> None:
        self._steps = self._computed_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._preemptions = self._ended = self._failed = 0
        self._step_s = 0.0

    def step(self, stats: StepStats) -> None:
        """Add one engine step; one of no time was none."""
        self._steps += bool(stats.step_s)
        self._step_s += stats.step_s
        self._computed_tokens += stats.computed_tokens
        self._preemptions += stats.preemptions

    def tokens(self, stats: TokenStats) -> None:
        """Add what one step brought to clients."""
        self._generated_tokens += stats.generated_tokens
        self._prompt_tokens += stats.prompt_tokens
        self._cached_tokens += stats.cached_tokens

    def request(self, stats: RequestStats) -> None:
        """Add one request that has ended."""
        self._ended += 1
        self._failed += stats.finish_reason in _FAILED

    def shown(self) -> dict[str, Any]:
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

"""A scheduling policy with a setting of its own."""

from __future__ import annotations

from core.api import EngineConfig, QueuedRequest

EXAMPLE_ORDER = [
    {"num_prompt_tokens": 900, "arrival_s": 1.0},
    {"num_prompt_tokens": 5, "arrival_s": 60.0},
]
"""Requests that wait together, in the order in which they are to run: the conformance suite
compares.
"""


class Acme:
    """Short prompts first, unless a longer one came much earlier."""

    def __init__(self, config: EngineConfig) -> None:
        self._tokens_per_s = 1000 / config.options["acme_patience"]

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the rank: the smallest runs first."""
        return (request.num_prompt_tokens + request.arrival_s * self._tokens_per_s,)

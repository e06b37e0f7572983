"""A scheduling policy with its own option."""

from __future__ import annotations

from core.api import EngineConfig
from core.api.features import QueuedRequest

EXAMPLE_ORDER = [
    {"num_prompt_tokens": 900, "arrival_s": 1.0},
    {"num_prompt_tokens": 5, "arrival_s": 60.0},
]
"""Waiting requests in the expected order, tested by the conformance suite."""


class Acme:
    """Runs short prompts first, unless a longer one arrived much earlier."""

    def __init__(self, config: EngineConfig) -> None:
        self._tokens_per_s = 1000 / config.options["acme_patience"]

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the sort key: the smallest runs first."""
        return (request.num_prompt_tokens + request.arrival_s * self._tokens_per_s,)

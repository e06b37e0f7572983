"""A scheduling policy: a pure function from request facts to a sort key."""

from __future__ import annotations

from core.api.features import QueuedRequest

EXAMPLE_ORDER = [
    {"num_prompt_tokens": 5, "arrival_s": 3.0},
    {"num_prompt_tokens": 90, "arrival_s": 1.0},
    {"num_prompt_tokens": 90, "arrival_s": 2.0},
]
"""Waiting requests in the expected order, tested by the conformance suite."""


class Acme:
    """Runs short prompts first; equal lengths in arrival order."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the sort key: the smallest runs first, the largest is preempted first."""
        return (request.num_prompt_tokens, request.arrival_s)

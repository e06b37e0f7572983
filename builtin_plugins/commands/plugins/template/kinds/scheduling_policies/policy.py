"""A scheduling policy: a pure function from what is known of a request to its rank."""

from __future__ import annotations

from core.api import QueuedRequest

EXAMPLE_ORDER = [
    {"num_prompt_tokens": 5, "arrival_s": 3.0},
    {"num_prompt_tokens": 90, "arrival_s": 1.0},
    {"num_prompt_tokens": 90, "arrival_s": 2.0},
]
"""Requests that wait together, in the order in which they are to run: the conformance suite
compares.
"""


class Acme:
    """Runs short prompts first; among equal ones, first come, first served."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the rank: the smallest runs first, the largest is preempted first."""
        return (request.num_prompt_tokens, request.arrival_s)

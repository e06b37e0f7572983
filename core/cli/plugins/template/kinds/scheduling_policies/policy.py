"""A scheduling policy: a pure function from what is known of a request to its rank."""

from __future__ import annotations

from core.api import QueuedRequest


class Acme:
    """Runs short prompts first; among equal ones, first come, first served."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return the rank: the smallest runs first, the largest is preempted first."""
        return (request.num_prompt_tokens, request.arrival_s)

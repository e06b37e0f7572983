"""A metric sink: takes the numbers of each step and each request.

Called between steps, so it must be quick.
"""

from __future__ import annotations

from core.api import EngineConfig, RequestStats, StepStats, TokenStats

EXAMPLE_TOTALS = {"most_running": 3, "generated_tokens": 12, "finished_requests": 3}
"""Behind the traffic of the conformance suite; of a sink with `expose`, its series with their
labels.
"""


class Acme:
    """Sums over the life of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.most_running = 0
        self.generated_tokens = 0
        self.finished_requests = 0

    def step(self, stats: StepStats) -> None:
        """Take the numbers of one engine step."""
        self.most_running = max(self.most_running, stats.num_running)

    def tokens(self, stats: TokenStats) -> None:
        """Take what a step brought to requests."""
        self.generated_tokens += stats.generated_tokens

    def request(self, stats: RequestStats) -> None:
        """Take the numbers of one finished request."""
        self.finished_requests += 1

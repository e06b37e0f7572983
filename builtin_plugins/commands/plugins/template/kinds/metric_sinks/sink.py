"""A metric sink: receives the metrics of each step and request.

The engine calls it between steps, so it must be fast.
"""

from __future__ import annotations

from core.api import EngineConfig
from core.api.telemetry import RequestStats, StepStats, TokenStats

EXAMPLE_TOTALS = {"max_running": 3, "generated_tokens": 12, "finished_requests": 3}
"""Expected totals after the traffic of the conformance suite.

For a sink with `expose`: its series with their labels.
"""


class Acme:
    """Totals over the life of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.max_running = 0
        self.generated_tokens = 0
        self.finished_requests = 0

    def step(self, stats: StepStats) -> None:
        """Add the metrics of one engine step."""
        self.max_running = max(self.max_running, stats.num_running)

    def tokens(self, stats: TokenStats) -> None:
        """Add the token counts of one step."""
        self.generated_tokens += stats.generated_tokens

    def request(self, stats: RequestStats) -> None:
        """Add the metrics of one finished request."""
        self.finished_requests += 1

"""Cost of requests: one unit per prompt token, three per generated token."""

from core.api import Entry, hookimpl

EXAMPLE_TOTALS = {"bill_units_total": 201.0}


class Bill:
    def __init__(self, config):
        self.units = 0

    def step(self, stats):
        pass

    def request(self, stats):
        self.units += stats.prompt_tokens + 3 * stats.generated_tokens

    def expose(self, health):
        page = f"# TYPE bill_units_total counter\nbill_units_total {self.units}\n"
        return page.encode(), "text/plain; version=0.0.4"


@hookimpl
def engine_metric_sinks():
    return [Entry("bill", Bill, "counts the cost of requests")]

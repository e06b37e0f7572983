"""The page of metrics, from the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.metric_sinks.prometheus import catalogue
from builtin_plugins.metric_sinks.prometheus.catalogue import MetricSpec

INTRO = """\
# Metrics

Every name starts with `engine_` (`--metrics-prefix`). A counter ends with `_total`, a histogram
with `_bucket`, `_sum` and `_count`. Every metric has the label `model_name`, those of an engine
also `engine`; further labels are in brackets. [What is
counted](../guides/observability.md#metrics) explains them.
"""
SECTIONS: tuple[tuple[str, Sequence[MetricSpec]], ...] = (
    ("Of an engine: each step", catalogue.ENGINE),
    ("Of an engine: each delivery of tokens", catalogue.TOKEN),
    ("Of an engine: each finished request", (*catalogue.REQUEST, *catalogue.FEATURES)),
    ("Of an engine: read on each scrape", catalogue.ENGINE_STATE),
    ("Of the server: each HTTP request", catalogue.HTTP),
    ("Of the server: each tool call", catalogue.CALLS),
    (
        "Of the server: read on each scrape",
        (*catalogue.SERVER_STATE, *catalogue.PLUGINS, *catalogue.MEMORY),
    ),
)


def metrics_page() -> str:
    """Return the page: a table of metrics for each moment at which they are counted."""
    return INTRO + "".join(_section(title, specs) for title, specs in SECTIONS)


def _section(title: str, specs: Sequence[MetricSpec]) -> str:
    rows = "".join(f"| {_name(spec)} | {spec.type} | {spec.text} |\n" for spec in specs)
    return f"\n## {title}\n\n| name | type | meaning |\n| --- | --- | --- |\n{rows}"


def _name(spec: MetricSpec) -> str:
    labels = f" ({', '.join(spec.labels)})" if spec.labels else ""
    return f"`{spec.name}`{labels}"

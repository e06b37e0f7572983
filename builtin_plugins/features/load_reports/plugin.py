"""Load reports in answers: ORCA's header, with which a proxy balances servers."""

from __future__ import annotations

from core.api import Entry, hookimpl

FOLDER = "builtin_plugins.features.load_reports.reports"


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [Entry("load_reports", f"{FOLDER}:LoadSink", "the load of the last step, for reports")]


@hookimpl
def engine_routes() -> list[Entry]:
    summary = "the header endpoint-load-metrics, for requests that ask for it (ORCA)"
    return [Entry("load_reports", f"{FOLDER}:LoadReports", summary, requires=("fastapi",))]

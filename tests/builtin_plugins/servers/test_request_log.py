"""`--enable-log-requests`: one line per request, without its text."""

from __future__ import annotations

import logging

import pytest

from builtin_plugins.metric_sinks.request_log import RequestLog
from core.api.telemetry import HttpStats, RequestStats
from core.config import EngineConfig
from core.config.sections import ObservabilityConfig

DONE = RequestStats("stop", 12, 40, 1.5, 0.25, 0.001, cached_tokens=4, n=2, request_id="cmpl-1")


def lines_of(caplog, *calls, enabled=True):
    sink = RequestLog(EngineConfig(observability=ObservabilityConfig(enable_log_requests=enabled)))
    with caplog.at_level(logging.INFO):
        for name, stats in calls:
            getattr(sink, name)(stats)
    return [record.getMessage() for record in caplog.records]


def test_request_log_line_has_sizes_and_times(caplog):
    assert lines_of(caplog, ("request", DONE)) == [
        "request cmpl-1: stop, 12 prompt tokens (4 cached), 40 generated, n 2; "
        "queued 1.0 ms, first token 250.0 ms, all 1500.0 ms"
    ]


def test_request_log_shows_missing_times(caplog):
    (line,) = lines_of(caplog, ("request", RequestStats("abort", 12, 0, 0.5)))
    assert "queued never, first token never, all 500.0 ms" in line


@pytest.mark.parametrize(
    ("path", "status", "count"),
    [("/v1/models", 200, 0), ("/v1/models", 401, 1), ("/livez", 503, 0)],
)
def test_refused_requests_are_logged(caplog, path, status, count):
    assert len(lines_of(caplog, ("http", HttpStats(path, "GET", status, 0.01)))) == count


def test_request_log_is_off_by_default(caplog):
    assert (
        lines_of(
            caplog,
            ("request", DONE),
            ("http", HttpStats("/v1/models", "GET", 500, 0.1)),
            enabled=False,
        )
        == []
    )

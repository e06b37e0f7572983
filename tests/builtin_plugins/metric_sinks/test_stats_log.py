"""The log line of each interval of work."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from builtin_plugins.metric_sinks.stats_log import StatsLog
from core.api.telemetry import StepStats, TokenStats
from core.config import EngineConfig


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Logged:
    """A sink with its clock and its log lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **options: float) -> None:
        self.clock = Clock()
        self._caplog = caplog
        self.sink = StatsLog(EngineConfig(options=dict(options)), self.clock)

    def step(self, seconds: float, running: int = 1, **numbers: float) -> None:
        self.clock.now_s += seconds
        self.sink.step(StepStats(seconds, running, 0, 0.25, **numbers))  # type: ignore[arg-type]

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Logged]:
    with caplog.at_level(logging.INFO):
        yield Logged(caplog)


def test_stats_log_writes_line_per_interval(logged: Logged) -> None:
    logged.step(4.0, queried_tokens=100, cached_tokens=40)
    logged.sink.tokens(TokenStats(200, prompt_tokens=100))
    logged.step(5.0, preemptions=1)
    assert not logged.lines
    logged.step(1.0, running=3)
    assert logged.lines == [
        "3 running, 0 waiting; prompts 10.0 tokens/s, answers 20.0 tokens/s, "
        "computed 0.0 tokens/s; KV cache 25.0% used, "
        "prefix cache 40.0% hits, 1 preemptions"
    ]


def test_stats_log_counts_since_last_line(logged: Logged) -> None:
    logged.sink.tokens(TokenStats(200))
    logged.step(10.0, queried_tokens=10)
    logged.sink.tokens(TokenStats(50))
    logged.step(10.0)
    assert "answers 5.0 tokens/s" in logged.lines[1]
    assert "prefix cache not used, 0 preemptions" in logged.lines[1]


def test_long_prompt_is_counted_while_it_is_computed(logged: Logged) -> None:
    logged.step(5.0, computed_tokens=2048)
    logged.step(5.0, computed_tokens=2048)
    assert "prompts 0.0 tokens/s, answers 0.0 tokens/s, computed 409.6 tokens/s" in logged.lines[0]


def test_idle_time_is_not_counted(logged: Logged) -> None:
    logged.step(6.0, running=0)
    logged.clock.now_s += 3600
    logged.step(1.0, running=0)
    assert not logged.lines
    logged.clock.now_s += 3600
    logged.sink.tokens(TokenStats(100))
    logged.step(3.0, running=0)
    assert "0 running, 0 waiting; prompts 0.0 tokens/s, answers 10.0 tokens/s" in logged.lines[0]


def test_time_between_busy_steps_is_counted(logged: Logged) -> None:
    logged.step(1.0)
    logged.clock.now_s += 8
    logged.step(1.0)
    assert len(logged.lines) == 1


def test_stats_log_can_be_disabled(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logged = Logged(caplog, log_stats_interval=0.0)
        logged.step(3600.0)
    assert not logged.lines


def test_line_sums_up_several_engines(logged: Logged) -> None:
    logged.step(4.0, running=3, engine=0, queried_tokens=100)
    logged.step(1.0, running=0, engine=1, cached_tokens=50)
    logged.step(3.0, running=2, engine=1, preemptions=1)
    logged.sink.tokens(TokenStats(200, engine=1))
    assert not logged.lines
    logged.step(2.0, running=2, engine=1)
    assert logged.lines == [
        "5 running, 0 waiting; prompts 0.0 tokens/s, answers 20.0 tokens/s, "
        "computed 0.0 tokens/s; KV cache 25.0% used, "
        "prefix cache 50.0% hits, 1 preemptions"
    ]

"""When the process of several API servers reports that it serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from builtin_plugins.commands.serve.api_servers import ApiServers
from core.config import EngineConfig
from core.errors import EngineDead


@dataclass
class FakeServer:
    """An API server that serves after some checks, and ends or fails after others."""

    serves_at: int = 0
    ends_at: int = 4
    fails_at: int = 100
    num_checks: int = 0
    is_drained: bool = False
    maintenance: str = "stand-in"
    status: int = 0

    @property
    def is_serving(self) -> bool:
        return self.num_checks >= self.serves_at

    @property
    def has_ended(self) -> bool:
        return self.num_checks >= self.ends_at

    @property
    def error(self) -> EngineDead | None:
        return EngineDead("it has ended") if self.num_checks >= self.fails_at else None

    def check(self) -> None:
        self.num_checks += 1


@dataclass
class FakeParent:
    """Counts how often a slow API server was checked before the report."""

    slowest: FakeServer
    reports: list[tuple[str, int]] = field(default_factory=list)

    def report_serving(self, stand_in: str) -> None:
        self.reports.append((stand_in, self.slowest.num_checks))

    def report_drained(self) -> None:
        pass


def follow(*servers: FakeServer) -> list[tuple[str, int]]:
    """Supervise them until all have ended; return the reports."""
    parent = FakeParent(servers[-1])
    registry: Any = None
    owner = ApiServers(EngineConfig(options={"api_server_count": 2}), registry, parent, 0)
    owner._servers = list(servers)  # type: ignore[arg-type]
    assert owner._follow() == 0
    return parent.reports


def test_first_server_that_may_have_answered_is_reported_once() -> None:
    # The parent restarts this process from the report on, however slow the others are.
    assert follow(FakeServer(serves_at=1), FakeServer(serves_at=3)) == [("stand-in", 1)]


def test_start_error_ends_it_after_the_first_report_too() -> None:
    with pytest.raises(EngineDead):
        follow(FakeServer(serves_at=1), FakeServer(serves_at=9, fails_at=3))

"""The watchdog ends an engine process by `--step-timeout` and `--heartbeat-timeout`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.clients.process.watchdog import Watchdog
from core.config import EngineConfig
from core.config.sections import ServiceConfig
from core.errors import EngineDead


class Killed:
    """A child process that notes its end."""

    was_killed = False

    def kill(self) -> None:
        self.was_killed = True


@pytest.mark.parametrize(("step_timeout", "ends"), [(300.0, False), (5.0, True)])
def test_step_longer_than_step_timeout_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, step_timeout: float, ends: bool
) -> None:
    config = replace(EngineConfig(), service=ServiceConfig(step_timeout=step_timeout))
    watchdog: Any = Watchdog(config)
    monkeypatch.setattr(Watchdog, "busy_s", property(lambda self: 60.0))
    monkeypatch.setattr(Watchdog, "silence_s", property(lambda self: 0.0))
    child: Any = Killed()
    if not ends:
        watchdog._check(child)
        assert not child.was_killed
        return
    with pytest.raises(EngineDead, match="more than 5 s \\(--step-timeout\\)"):
        watchdog._check(child)
    assert child.was_killed

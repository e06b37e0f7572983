"""A start that takes long logs what it does."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.clients.process import start_log
from builtin_plugins.clients.process.start_log import INTERVAL_S, StartLog
from builtin_plugins.clients.process.supervised import Supervised
from core.errors import EngineDead

LOGGER = "builtin_plugins.clients.process.start_log"


def test_stage_is_logged_at_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    child: Any = SimpleNamespace(name="engine", stage="loading the model")
    log = StartLog(lambda: now_s)
    with caplog.at_level(logging.INFO, LOGGER):
        for tenth in range(1, 111):
            now_s = 100 + tenth / 10
            if tenth == 80:
                child.stage = "allocating the KV cache"
            log.note(child)
    assert INTERVAL_S == 5
    assert caplog.messages == [
        "engine: loading the model, 5 s so far",
        "engine: allocating the KV cache, 10 s so far",
    ]


def test_waiting_for_an_engine_logs_its_stage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_log, "INTERVAL_S", 0.0)
    messages = iter([None, None])

    def receive() -> None:
        try:
            return next(messages)
        except StopIteration:
            raise EngineDead("it has ended") from None

    waiting: Any = SimpleNamespace(
        child=SimpleNamespace(name="engine", stage="loading the model", receive=receive),
        _condition=SimpleNamespace(is_stopped=lambda: False),
        _is_taken_over=False,
    )
    with caplog.at_level(logging.INFO, LOGGER), pytest.raises(EngineDead):
        Supervised._wait_until_ready(waiting)
    assert caplog.messages == ["engine: loading the model, 0 s so far"] * 2

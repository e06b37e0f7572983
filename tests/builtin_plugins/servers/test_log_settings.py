"""Settings of uvicorn's logs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.servers.http.server import HttpServer, _is_logged, _name_uvicorn
from core.config import EngineConfig
from core.errors import ConfigError
from core.testing.echo_engine import EchoEngine


def uvicorn_config(**options: Any) -> Any:
    return HttpServer(EchoEngine(), EngineConfig(options=options), [])._uvicorn_config()


@pytest.fixture(autouse=True)
def loggers() -> Any:
    """Restore the loggers that uvicorn's configuration changes."""
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "mine")
    before = {
        name: (logging.getLogger(name).level, logging.getLogger(name).handlers[:]) for name in names
    }
    yield
    for name, (level, handlers) in before.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).handlers[:] = handlers


def test_uvicorn_log_level_is_the_level_of_its_loggers() -> None:
    for level in ("info", "error"):
        uvicorn_config(uvicorn_log_level=level)
        assert logging.getLogger("uvicorn.error").level == getattr(logging, level.upper())


def test_events_are_not_logged_as_errors() -> None:
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Started", (), None)
    assert _name_uvicorn(record)
    assert record.name == "uvicorn"


def test_log_config_file_configures_the_loggers(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    config = {"version": 1, "disable_existing_loggers": False}
    path.write_text(json.dumps({**config, "loggers": {"mine": {"level": "ERROR"}}}))
    logging.getLogger("mine").setLevel(logging.DEBUG)
    uvicorn_config(log_config_file=str(path))
    assert logging.getLogger("mine").level == logging.ERROR
    with pytest.raises(ConfigError, match="--log-config-file"):
        uvicorn_config(log_config_file=str(tmp_path / "absent"))


def test_disable_access_log_for_endpoints_hides_their_lines() -> None:
    def line(path: str) -> logging.LogRecord:
        arguments = ("127.0.0.1:1", "GET", path, "1.1", 200)
        return logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "", arguments, None)

    hidden = frozenset({"/metrics"})
    assert not _is_logged(frozenset(), hidden, line("/metrics"))
    assert _is_logged(frozenset(), hidden, line("/v1/models"))

"""Runs the server of several models."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builtin_plugins.commands.serve.models.adapters import Adapters
from builtin_plugins.commands.serve.models.names import ModelNames
from builtin_plugins.commands.serve.models.pool import ModelPool
from builtin_plugins.commands.serve.models.process import ProcessStarter
from builtin_plugins.commands.serve.models.routes import ForwardingRoutes, PoolRoutes
from builtin_plugins.commands.serve.models.settings import PoolSettings
from builtin_plugins.commands.serve.models.websocket import SocketRoutes
from builtin_plugins.routes.api import ERROR_FORMS
from builtin_plugins.servers.api import Parent
from core.api import EngineConfig
from core.api.plugins import LoadedRegistry
from core.api.telemetry import HttpStats

log = logging.getLogger(__name__)


class ServedPool:
    """The pool, as far as a server needs an engine."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self.served_names = [model.name for model in pool.models]
        self.sinks = SimpleNamespace(record=_log_refusal)  # models measure their requests

    def state(self) -> str:
        """Return "ready": a failed model is an error for its requests only."""
        return "ready"

    def health(self) -> Mapping[str, Any]:
        """Return the body of `/health`."""
        return {"status": "ready", "reason": ""}


def _log_refusal(stats: Any) -> None:
    """Log a request that was answered with an error before a model's process saw it."""
    if isinstance(stats, HttpStats) and stats.error:
        log.debug("%s request refused with status %d: %r", stats.method, stats.status, stats.error)


def make_folder() -> Path:
    """Return a folder for sockets; its name says which process it belongs to."""
    return Path(tempfile.mkdtemp(prefix=f"engine-{os.getpid()}-"))


def route_groups(pool: ModelPool, config: EngineConfig) -> dict[str, Any]:
    """Return the routes of a pool by name."""
    names = ModelNames(pool.models)
    adapters = Adapters(names)
    pool.on_loaded = adapters.reload
    groups: dict[str, Any] = {"models": PoolRoutes(pool, names, config)}
    for path, form in ERROR_FORMS.items():
        groups[path] = ForwardingRoutes(pool, names, adapters, [path], form)
    groups["socket"] = SocketRoutes(pool, names, config)
    groups["others"] = ForwardingRoutes(pool, names, adapters, ["/{path:path}"])
    return groups


def serve_models(
    settings: PoolSettings,
    folder: Path,
    config: EngineConfig,
    registry: LoadedRegistry,
    parent: Parent | None,
) -> int:
    """Serve until stopped; return the exit status."""
    server = registry.choose("servers")
    with registry.blame(server):
        make_server: Any = registry.load(server)
        if hasattr(make_server, "check") and (parent is None or not parent.restarts):
            make_server.check(config)
    json_logs = config.observability.log_format == "json"
    starter = ProcessStarter(folder, parent, json_logs=json_logs)
    pool = ModelPool(
        settings.models, starter, max_loaded=settings.max_loaded, max_queue=settings.max_queue
    )
    # A model's process logs its requests, and describes its routes at /openapi.json?model=NAME.
    own_options = {"disable_fastapi_docs": True, "disable_uvicorn_access_log": True}
    options = {**config.options, **own_options}
    try:
        with registry.blame(server):
            made = make_server(
                ServedPool(pool),
                dataclasses.replace(config, options=options),
                route_groups(pool, config),
            )
            if hasattr(made, "parent"):
                made.parent = parent
            status: int = made.run()
    finally:
        pool.shutdown()
    return status

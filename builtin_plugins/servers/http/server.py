"""Runs the application on uvicorn: binds the port, says where it listens, ends gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from builtin_plugins.servers.http.app import EngineApp
from core.api import ConfigError, EngineConfig, RouteGroup

_BACKLOG = 2048
_POLL_S = 0.05


class HttpServer:
    """Serves route groups over HTTP until SIGTERM or Ctrl-C.

    The first signal stops accepting and lets open requests finish; the second one cuts them.
    """

    def __init__(
        self, engine: Any, config: EngineConfig, groups: Mapping[str, RouteGroup] | Sequence[RouteGroup]
    ) -> None:
        self._options = config.options
        named = groups if isinstance(groups, Mapping) else {_name(group): group for group in groups}
        self.app = EngineApp(named, config.options)
        """The ASGI application, for tests and other servers."""
        self._names = ", ".join(engine.served_names)

    @staticmethod
    def check(config: EngineConfig) -> None:
        """Raise `ConfigError` when the address cannot be listened on, before a model is loaded in vain."""
        _listen(*_address(config.options)).close()

    def run(self) -> int:
        """Serve until told to stop. Raises `ConfigError` when the address cannot be listened on."""
        host, port = _address(self._options)
        listener = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}{self._options.get('root_path') or ''}"
        server = _Server(self._uvicorn_config(), self.app, f"Serving {self._names} on {url}")
        try:
            server.run(sockets=[listener])
        finally:
            listener.close()
        return 0 if server.started else 1

    def _uvicorn_config(self) -> uvicorn.Config:
        options = self._options
        return uvicorn.Config(
            self.app,
            log_config=_log_config(options.get("log_config_file")),
            log_level=options.get("uvicorn_log_level") or "info",
            access_log=not options.get("disable_uvicorn_access_log"),
            server_header=False,
            lifespan="on",
            timeout_keep_alive=5,
            h11_max_incomplete_event_size=64 * 1024,
        )


class _Server(uvicorn.Server):
    """uvicorn's server that says when it is ready and treats a signal as a wish, not as a death."""

    def __init__(self, config: uvicorn.Config, app: EngineApp, ready_line: str) -> None:
        super().__init__(config)
        self._app = app
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so in one line."""
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(self._ready_line + "\n")
            sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests end while new ones get a 503, then close; the second signal ends them with an error."""
        while self.server_state.tasks and not self.force_exit:
            await asyncio.sleep(_POLL_S)
        if self.force_exit:
            for task in list(self.server_state.tasks):
                task.cancel()
            self.config.timeout_graceful_shutdown = 1  # for clients that do not read what they are told
            self.force_exit = False
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: cut."""
        self._app.guard.draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM here; unlike uvicorn, do not raise them again after a clean end."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may take signals; whoever runs us elsewhere ends us otherwise
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _address(options: Mapping[str, Any]) -> tuple[str, int]:
    return options.get("host") or "127.0.0.1", options.get("port", 8000)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} does not exist; use 1 to 65535, or 0 for a free one.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use by another program; stop it or choose another --port (0 takes a free one)."
            ) from error
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; check --host and --port.") from error


def _log_config(path: str | None) -> dict[str, Any] | None:
    """Return a dictConfig; without a file, uvicorn's loggers go where the engine's go."""
    if path is None:
        return None
    try:
        config: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--log-config-file {path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--log-config-file {path} must hold a JSON object, as logging.config.dictConfig takes it.")
    return config


def _name(group: RouteGroup) -> str:
    kind = type(group)
    return f"{kind.__module__}.{kind.__qualname__}"

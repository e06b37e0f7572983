"""Runs the application on uvicorn: says where it listens, watches engine and connections, ends
gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn

from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.connections import AcceptFaults, check_all, protocol
from builtin_plugins.servers.http.limits import Limits, open_more_files
from builtin_plugins.servers.http.sockets import (
    BACKLOG,
    check_tls,
    close,
    keep_listener,
    kept_listener,
    listen,
    load_certificate,
    tls_files,
    url_of,
)
from core.api import ConfigError, EngineConfig, Parent, RouteGroup

log = logging.getLogger(__name__)

SWITCH_S: Final = 0.0005
"""How long a thread of this process may keep the others waiting. Tokens come by a thread that asks
for the interpreter several
times per step; at Python's 5 ms each, one busy client delays everybody's.
"""
YOUNG_OBJECTS: Final = (10_000, 20, 50)
"""After how many new objects Python looks for those nobody needs (`gc.set_threshold`). A step of
hundreds of streams makes
thousands that are all gone after it; at Python's 700, looking for them is a third of the work.
"""
POLL_S: Final = 0.05
WATCH_S: Final = 1.0
"""How often engine, connections and certificates are looked at."""
STAND_IN: Final = "builtin_plugins.servers.http.stand_in:run"
"""Who answers while this process is started again."""


class HttpServer:
    """Serves route groups over HTTP until SIGTERM, Ctrl-C or the engine's death.

    The first signal lets open requests finish and refuses others; the second one cuts them.
    """

    def __init__(
        self,
        engine: Any,
        config: EngineConfig,
        groups: Mapping[str, RouteGroup] | Sequence[RouteGroup],
    ) -> None:
        self._engine = engine
        self._options = config.options
        named = groups if isinstance(groups, Mapping) else {_name(group): group for group in groups}
        self.app = EngineApp(named, config.options, engine.sinks.http)
        """The ASGI application, for tests and other servers."""
        self.url = ""
        """Where it listens, from `run` on."""
        self._server: _Server | None = None
        self.parent: Parent | None = None
        """Keeps what we listen on when we die."""

    @staticmethod
    def check(config: EngineConfig) -> None:
        """Raise `ConfigError` for an address or settings that cannot work, before a model is loaded
        in vain.
        """
        open_more_files()
        Limits.from_options(config.options)
        check_tls(config.options)
        _check_loop(config.options)
        _patience(config.options)
        close(listen(config.options), config.options)

    def run(self) -> int:
        """Serve until told to stop; 1 if the engine died.

        Raises `ConfigError` for what cannot be listened on.
        """
        listener = kept_listener(self.parent) or listen(self._options)
        keep_listener(listener, self.parent, self._options)
        self.url = url_of(listener, self._options)
        server = self._server = _Server(
            self._uvicorn_config(), self._engine, self.app, self._options, self._announce
        )
        access = logging.getLogger("uvicorn.access")
        worth_a_line = partial(_worth_a_line, self.app.quiet_paths)
        access.addFilter(worth_a_line)
        before_s = sys.getswitchinterval()
        before = gc.get_threshold()
        sys.setswitchinterval(SWITCH_S)
        gc.set_threshold(*YOUNG_OBJECTS)
        try:
            server.run(sockets=[listener])
        finally:
            sys.setswitchinterval(before_s)
            gc.set_threshold(*before)
            access.removeFilter(worth_a_line)
            close(listener, self._options)
        return 0 if server.started and not server.engine_died else 1

    def stop(self) -> None:
        """End as a signal would end it; call it from another thread, the second time to cut what is
        open.
        """
        if self._server is not None:
            self._server.handle_exit(signal.SIGTERM, None)

    def _announce(self) -> None:
        """Say that we listen: to the parent, and in one line where nobody has said it before."""
        if self.parent is not None:
            self.parent.serving(STAND_IN)
        if self.parent is None or not self.parent.restarts:
            say(f"Serving {', '.join(self._engine.served_names)} on {self.url}")

    def _uvicorn_config(self) -> uvicorn.Config:
        options = self._options
        return uvicorn.Config(
            self.app,
            loop=options.get("event_loop") or "auto",
            http=protocol(self.app.limits),
            log_config=_log_config(options.get("log_config_file")),
            log_level=options.get("uvicorn_log_level") or "info",
            access_log=not options.get("disable_uvicorn_access_log"),
            server_header=False,
            lifespan="on",
            backlog=self.app.limits.taken_at_once,
            timeout_keep_alive=self.app.limits.keep_alive_s,  # type: ignore[arg-type]  # any number does
            h11_max_incomplete_event_size=self.app.limits.head_bytes
            + 1024 * 1024,  # we refuse before, and better
            ssl_certfile=options.get("ssl_certfile"),
            ssl_keyfile=options.get("ssl_keyfile"),
            ssl_ca_certs=options.get("ssl_ca_certs"),
            ssl_cert_reqs=options.get("ssl_cert_reqs") or 0,
        )


class _Server(uvicorn.Server):
    """uvicorn's server that says when it is ready and treats a signal as a wish, not as a death."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: Any,
        app: EngineApp,
        options: Mapping[str, Any],
        announce: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._app = app
        self._options = options
        self._announce = announce
        self._patience_s = _patience(options)
        self._certificates = tls_files(options) if options.get("enable_ssl_refresh") else {}
        self.engine_died = False
        """It did while the server was up, and nothing brings it back."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so in one line."""
        asyncio.get_running_loop().set_exception_handler(
            AcceptFaults(self.server_state.connections)
        )
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(
                BACKLOG
            )  # what the system keeps for us may be more than we take at once
        self._app.guard.is_crowded = lambda: (
            len(self.server_state.connections) > self._app.limits.connections
        )
        self._watcher = asyncio.create_task(self._watch())
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests end while new ones get a 503, then close; what takes too long ends with
        an error.
        """
        loop = asyncio.get_running_loop()
        until_s = float("inf") if self._patience_s is None else loop.time() + self._patience_s
        while self.server_state.tasks and not self.force_exit and loop.time() < until_s:
            await asyncio.sleep(POLL_S)
        if self.server_state.tasks:
            for task in list(self.server_state.tasks):
                task.cancel()
            self.config.timeout_graceful_shutdown = (
                1  # for clients that do not read what they are told
            )
        self.force_exit = False
        try:
            await super().shutdown(sockets)
        finally:
            self._watcher.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: cut."""
        self._app.guard.activity.draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def _watch(self) -> None:
        """Look after everything that is not worth a timer of its own."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            check_all(self.server_state.connections, loop.time())
            if self._certificates:
                self._refresh_certificates()
            if not self.engine_died and self._engine.state() == "dead":
                log.error(
                    "the engine has ended, so the server ends: %s",
                    self._engine.health().get("reason"),
                )
                self.engine_died = self.should_exit = True

    def _refresh_certificates(self) -> None:
        changed = tls_files(self._options)
        if changed == self._certificates or not isinstance(self.config.ssl, ssl.SSLContext):
            return
        self._certificates = changed
        try:
            load_certificate(self.config.ssl, self._options)
        except ConfigError as error:
            log.error("new certificates cannot be used, the old ones stay: %s", error)
        else:
            log.info("new certificates are in use")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM here; unlike uvicorn, do not raise them again after a clean
        end.
        """
        if threading.current_thread() is not threading.main_thread():
            # only the main thread may take signals; whoever runs us elsewhere ends us otherwise
            yield
            return
        previous = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def say(line: str) -> None:
    """Write a line to standard output; where that is closed or full, to the log, and nothing there
    any more.
    """
    stdout = sys.stdout
    try:
        if stdout is not None:
            stdout.write(f"{line}\n")
            stdout.flush()
            return
    except (OSError, ValueError) as error:
        log.warning("standard output takes nothing: %s", error)
        with contextlib.suppress(OSError, ValueError):  # the interpreter would try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    log.info("%s", line)


def _worth_a_line(quiet_paths: Collection[str], record: logging.LogRecord) -> bool:
    """Say whether a line of uvicorn's access log tells anything."""
    if not isinstance(record.args, tuple) or len(record.args) < 5:
        return True
    path = str(record.args[2]).partition("?")[0]
    status = record.args[4]
    return path not in quiet_paths or not isinstance(status, int) or status >= 400


def _patience(options: Mapping[str, Any]) -> float | None:
    """Return how long open requests may take after a signal; None: as long as they need."""
    seconds: float | None = options.get("shutdown_timeout")
    if seconds is not None and not seconds >= 0:
        raise ConfigError(
            f"--shutdown-timeout {seconds:g} lies in the past; give 0 or more seconds."
        )
    return seconds


def _check_loop(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an event loop that is not installed."""
    if options.get("event_loop") == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise ConfigError(
            "--event-loop uvloop is not installed: `pip install core[uvloop]`, or leave the option "
            "out."
        )


def _log_config(path: str | None) -> dict[str, Any] | None:
    """Return a dictConfig; without a file, uvicorn's loggers go where the engine's go."""
    if path is None:
        return None
    try:
        config: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--log-config-file {path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"--log-config-file {path} must hold a JSON object, as logging.config.dictConfig takes "
            "it."
        )
    return config


def _name(group: RouteGroup) -> str:
    kind = type(group)
    return f"{kind.__module__}.{kind.__qualname__}"

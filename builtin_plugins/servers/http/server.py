"""Runs the application on uvicorn: announcement, supervision of the engine, graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

from builtin_plugins.servers.contract import RouteGroup
from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.connections import AcceptErrorHandler, check_all, protocol
from builtin_plugins.servers.http.limits import Limits, open_more_files
from builtin_plugins.servers.http.middleware import load_middleware
from builtin_plugins.servers.http.sockets import (
    BACKLOG,
    DEFAULT_CIPHERS,
    LISTENER,
    check_tls,
    close,
    listen,
    load_certificate,
    preserve_listener,
    preserved_listener,
    tls_files,
    url_of,
)
from builtin_plugins.servers.parent import Parent, ServerParent
from core.api import ConfigError, EngineConfig
from core.api.config import check_option_file, read_option_json
from core.api.serving import ServedEngine

log = logging.getLogger(__name__)

SWITCH_S: Final = 0.0005
"""Switch interval of Python's threads, in seconds. The thread that delivers tokens needs the
interpreter several times per step; with Python's 5 ms one busy client would delay all others.
"""
GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Thresholds of the garbage collector (`gc.set_threshold`). A step of hundreds of streams makes
thousands of short-lived objects; with Python's 700, collections take a third of the time.
"""
POLL_S: Final = 0.05
"""Interval between two checks for open requests during shutdown, in seconds."""
WATCH_S: Final = 1.0
"""Interval of checks of engine, connections and certificates, in seconds."""
TRIM_S: Final = 60.0
"""Interval in which freed memory returns to the system, in seconds."""
QUIET_REQUESTS: Final = 16
"""Open requests up to which all generations of objects are collected, which takes milliseconds."""
MAINTENANCE_SERVER: Final = "builtin_plugins.servers.http.maintenance_server:run"
"""Placeholder server that answers while this process restarts."""


class HttpServer:
    """Serves route groups over HTTP until SIGTERM, Ctrl-C or the engine's death.

    The first signal rejects new requests and lets open ones finish; the second one aborts them.
    """

    def __init__(
        self,
        engine: ServedEngine,
        config: EngineConfig,
        groups: Mapping[str, RouteGroup] | Sequence[RouteGroup],
    ) -> None:
        self._engine = engine
        self._options = config.options
        named = groups if isinstance(groups, Mapping) else {_name(group): group for group in groups}
        self.app = EngineApp(named, config.options, engine.sinks.record)
        """The ASGI application, for tests and other servers."""
        self.url = ""
        """Address of the server, set by `run`."""
        self._pages = [path for group in named.values() if (path := getattr(group, "page", ""))]
        self._is_one_of_several = (config.options.get("api_server_count") or 1) > 1
        self._server: _Server | None = None
        self.parent: ServerParent | None = None
        """Parent process, which preserves the listening socket if this process dies."""

    @staticmethod
    def check(config: EngineConfig) -> None:
        """Raise `ConfigError` for an address or settings that cannot work, before a model loads."""
        open_more_files()
        HttpServer.check_settings(config)
        close(listen(config.options), config.options)

    @staticmethod
    def check_settings(config: EngineConfig) -> None:
        """Raise `ConfigError` for settings that cannot work, without opening the address."""
        Limits.from_options(config.options)
        check_tls(config.options)
        _log_config(config.options.get("log_config_file"))
        if config.options.get("tenant_header") and config.options.get("api_key"):
            raise ConfigError(
                f"--tenant-header: got {config.options['tenant_header']!r} next to --api-key; "
                "with keys the key is the tenant. Remove it."
            )
        for path in config.options.get("middleware") or ():
            load_middleware(path)
        _check_loop(config.options)
        _shutdown_timeout(config.options)

    @staticmethod
    def open_listeners(config: EngineConfig, parent: Parent | None) -> dict[str, list[int]]:
        """Return the listening socket, which several processes of this server share.

        Raises `ConfigError` for an address that cannot be used.
        """
        listener = preserved_listener(parent) or listen(config.options)
        preserve_listener(listener, parent, config.options)
        return {LISTENER: [listener.detach()]}

    def run(self) -> int:
        """Serve until stopped; return 0, or 1 if the engine died.

        Raises `ConfigError` for an address that cannot be used.
        """
        listener = preserved_listener(self.parent) or listen(self._options)
        preserve_listener(listener, self.parent, self._options)
        self.url = url_of(listener, self._options)
        server = self._server = _Server(
            self._uvicorn_config(), self._engine, self.app, self._options, self._announce
        )
        if self.parent is not None:
            server.drained = self.parent.report_drained
        access = logging.getLogger("uvicorn.access")
        hidden = self._options.get("disable_access_log_for_endpoints") or ""
        is_logged = partial(
            _is_logged, self.app.quiet_paths, frozenset(map(str.strip, hidden.split(",")))
        )
        hide_ids = partial(_hide_ids, self.app.template_of)
        access.addFilter(is_logged)
        access.addFilter(hide_ids)
        events = logging.getLogger("uvicorn.error")
        events.addFilter(_name_uvicorn)
        before_s = sys.getswitchinterval()
        before = gc.get_threshold()
        sys.setswitchinterval(SWITCH_S)
        gc.set_threshold(*GC_THRESHOLDS)
        try:
            server.run(sockets=[listener])
        finally:
            sys.setswitchinterval(before_s)
            gc.set_threshold(*before)
            access.removeFilter(is_logged)
            access.removeFilter(hide_ids)
            events.removeFilter(_name_uvicorn)
            close(listener, self._options)
        return 0 if server.started and not server.engine_died else 1

    def stop(self) -> None:
        """Drain as with a signal, from another thread; a second call aborts open requests."""
        if self._server is not None:
            self._server.handle_exit(signal.SIGTERM, None)

    def _announce(self) -> None:
        """Report to the parent that the server listens, and print it once."""
        if self.parent is not None:
            self.parent.report_serving(MAINTENANCE_SERVER)
        if self.parent is None or not self.parent.restarts:
            print_line(f"Serving {', '.join(self._engine.served_names)} on {self.url}")
            for path in self._pages if self.url.startswith("http") else ():
                print_line(f"Chat with it in a browser: {self.url}{path}")

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
            ws="websockets-sansio" if importlib.util.find_spec("websockets") else "none",
            ws_max_size=self.app.limits.request_bytes,
            lifespan="on",
            # Processes that share the socket accept in turn.
            backlog=1 if self._is_one_of_several else self.app.limits.accept_batch,
            timeout_keep_alive=self.app.limits.keep_alive_s,  # type: ignore[arg-type]
            # Larger than our own limit, which has a better error.
            h11_max_incomplete_event_size=self.app.limits.head_bytes + 1024 * 1024,
            ssl_certfile=options.get("ssl_certfile"),
            ssl_keyfile=options.get("ssl_keyfile"),
            ssl_ca_certs=options.get("ssl_ca_certs"),
            ssl_cert_reqs=options.get("ssl_cert_reqs") or 0,
            ssl_ciphers=options.get("ssl_ciphers") or DEFAULT_CIPHERS,
        )


class _Server(uvicorn.Server):
    """uvicorn's server, with an announcement when it is ready and a graceful shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: ServedEngine,
        app: EngineApp,
        options: Mapping[str, Any],
        announce: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._app = app
        self._options = options
        self._announce = announce
        self._shutdown_timeout_s = _shutdown_timeout(options)
        self._certificates = tls_files(options) if options.get("enable_ssl_refresh") else {}
        self.drained: Callable[[], None] = lambda: None
        """Called at the end of the shutdown; threads of requests may still run."""
        self.engine_died = False
        """Whether the engine died for good while the server was running."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then announce it."""
        asyncio.get_running_loop().set_exception_handler(
            AcceptErrorHandler(self.server_state.connections)
        )
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # larger than one accept batch
        self._app.guard.is_crowded = lambda: (
            len(self.server_state.connections) > self._app.limits.connections
        )
        self._watcher = asyncio.create_task(self._watch())
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish open requests while new ones get a 503; after the timeout fail the rest."""
        loop = asyncio.get_running_loop()
        until_s = (
            float("inf")
            if self._shutdown_timeout_s is None
            else loop.time() + self._shutdown_timeout_s
        )
        while self.server_state.tasks and not self.force_exit and loop.time() < until_s:
            await asyncio.sleep(POLL_S)
        if self.server_state.tasks:
            for task in list(self.server_state.tasks):
                task.cancel()
            self.config.timeout_graceful_shutdown = 1  # some clients do not read
        self.force_exit = False
        try:
            await super().shutdown(sockets)
        finally:
            self._watcher.cancel()
            self.drained()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, abort at the second."""
        self._app.guard.activity.draining = True
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def _watch(self) -> None:
        """Check connections, certificates and the engine periodically."""
        loop = asyncio.get_running_loop()
        trimmed_s = loop.time()
        while True:
            await asyncio.sleep(WATCH_S)
            if loop.time() - trimmed_s > TRIM_S:
                # Closed connections are cycles of asyncio: at these thresholds they stay for hours.
                gc.collect(2 if len(self.server_state.tasks) <= QUIET_REQUESTS else 1)
                await asyncio.to_thread(trim_memory)
                trimmed_s = loop.time()
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
        """Handle SIGINT and SIGTERM; unlike uvicorn, do not raise them again after a clean end."""
        if threading.current_thread() is not threading.main_thread():
            # only the main thread receives signals; callers in other threads use `stop`
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


def print_line(line: str) -> None:
    """Write a line to standard output, or to the log if that is closed or full."""
    stdout = sys.stdout
    try:
        if stdout is not None:
            stdout.write(f"{line}\n")
            stdout.flush()
            return
    except (OSError, ValueError) as error:
        log.warning("cannot write to standard output: %s", error)
        with contextlib.suppress(OSError, ValueError):  # the interpreter would retry at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    log.info("%s", line)


def _is_logged(
    quiet_paths: Collection[str], hidden_paths: Collection[str], record: logging.LogRecord
) -> bool:
    """Return whether a request belongs in the access log: not on a hidden path, and failed or not
    on a quiet path.
    """
    if not isinstance(record.args, tuple) or len(record.args) < 5:
        return True
    path = str(record.args[2]).partition("?")[0]
    status = record.args[4]
    if path in hidden_paths:
        return False
    return path not in quiet_paths or not isinstance(status, int) or status >= 400


def _hide_ids(template_of: Callable[[str], str], record: logging.LogRecord) -> bool:
    """Log the template of a path with parameters, such as ids, and not its query."""
    if isinstance(record.args, tuple) and len(record.args) >= 5:
        template = template_of(str(record.args[2]).partition("?")[0])
        if "{" in template:
            record.args = (*record.args[:2], template, *record.args[3:])
    return True


def _shutdown_timeout(options: Mapping[str, Any]) -> float | None:
    """Return the timeout of open requests after a signal, in seconds; None: no timeout."""
    seconds: float | None = options.get("shutdown_timeout")
    if seconds is not None and not seconds >= 0:
        raise ConfigError(f"--shutdown-timeout {seconds:g} is negative; give 0 or more seconds.")
    return seconds


def _check_loop(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an event loop that is not installed."""
    if options.get("event_loop") == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise ConfigError(
            "--event-loop uvloop is not installed: `pip install core[uvloop]`, or remove the "
            "option."
        )


def trim_memory() -> None:
    """Return freed memory to the system: glibc retains pages between blocks in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc
        trim(0)


def _name_uvicorn(record: logging.LogRecord) -> bool:
    """Name uvicorn's lines after it: its logger of every event is called `uvicorn.error`."""
    record.name = "uvicorn"
    return True


def _log_config(path: str | None) -> dict[str, Any] | None:
    """Return a dictConfig; None: uvicorn's loggers use the engine's handlers."""
    if path is None:
        return None
    check_option_file("--log-config-file", path)  # each process that serves reads it
    config: Any = read_option_json("--log-config-file", path)
    if not isinstance(config, dict):
        raise ConfigError(
            f"--log-config-file {path} must hold a JSON object for logging.config.dictConfig."
        )
    return config


def _name(group: RouteGroup) -> str:
    kind = type(group)
    return f"{kind.__module__}.{kind.__qualname__}"
